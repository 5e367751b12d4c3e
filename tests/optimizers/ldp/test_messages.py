"""Messages: what goes in comes out, and what is damaged does not."""

import contextlib
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError, MessageError
from botorch_dp.optimizers import LDPAnswer, LDPQuery
from botorch_dp.optimizers.ldp import messages as ldp_messages
from botorch_dp.optimizers.ldp.messages import MAX_BYTES, VERSION
from tests.optimizers.problems import DOUBLE, seeded

pytestmark = pytest.mark.cpu_only("users send and receive CPU tensors")

RUN = bytes(range(16))


def dictionary(m=4, p=3, **changes):
    generator = seeded(1)
    fields = {
        "x": torch.randn(p, generator=generator, **DOUBLE),
        "points": torch.randn(m, p, generator=generator, **DOUBLE),
        "weights": torch.randn(p, m, generator=generator, **DOUBLE),
    }
    return LDPQuery(RUN, 7, **{**fields, **changes})


def stencil(p=3):
    return LDPQuery(RUN, 7, torch.randn(p, generator=seeded(2), **DOUBLE), 0.2)


def answer(p=3):
    return LDPAnswer(RUN, 7, torch.randn(p, generator=seeded(3), **DOUBLE))


def same(a, b):
    return a is b or (a is not None and b is not None and torch.equal(a, b))


class TestRoundTrip:
    @pytest.mark.parametrize("query", [stencil(), dictionary(), dictionary(1, 1)])
    def test_query(self, query):
        read = LDPQuery.from_bytes(query.to_bytes())
        assert (read.run_id, read.step, read.half_width) == (RUN, 7, query.half_width)
        for name in ("x", "points", "weights", "evaluation_points"):
            assert same(getattr(read, name), getattr(query, name))

    def test_answer(self):
        read = LDPAnswer.from_bytes(answer().to_bytes())
        assert (read.run_id, read.step) == (RUN, 7)
        assert torch.equal(read.gradient, answer().gradient)

    def test_layout_is_the_documented_one(self):
        message = stencil().to_bytes()
        magic, version, kind, run, step, p, m, h = struct.unpack_from(
            "<4sHH16sQIId", message
        )
        assert (magic, version, kind, run) == (b"LDPQ", VERSION, 0, RUN)
        assert (step, p, m, h) == (7, 3, 0, 0.2)
        assert struct.unpack("<3d", message[48:]) == tuple(stencil().x.tolist())
        assert len(answer().to_bytes()) == 48 + 3 * 8

    def test_numbers_that_are_not_finite_survive(self):
        broken = torch.tensor([float("nan"), float("inf"), 1.0], **DOUBLE)
        read = LDPQuery.from_bytes(LDPQuery(RUN, 1, broken, 0.1).to_bytes())
        assert torch.equal(read.x.isnan(), broken.isnan())

    def test_gradients(self, double):
        q = dictionary()
        losses = torch.randn(4, generator=seeded(5), **double)
        assert torch.equal(q.gradient(losses), q.weights @ losses)
        q = stencil()
        losses = q.evaluation_points.square().sum(dim=-1)
        assert torch.allclose(q.gradient(losses), 2 * q.x)


class TestOldNames:
    def test_classes(self):
        for old, new in {"Query": LDPQuery, "Answer": LDPAnswer}.items():
            with pytest.warns(DeprecationWarning, match=f"messages.{old} is deprec"):
                assert getattr(ldp_messages, old) is new

    @pytest.mark.parametrize("message", [stencil(), answer()], ids=["query", "answer"])
    def test_the_identity_of_a_run(self, message):
        with pytest.warns(DeprecationWarning, match=r"\.run is .* use run_id"):
            assert message.run == RUN


class TestDamaged:
    @given(st.binary(max_size=300))
    def test_noise_is_never_a_message(self, message):
        for kind in (LDPQuery, LDPAnswer):
            with pytest.raises(MessageError):
                kind.from_bytes(message)

    @given(st.data())
    def test_flipped_bytes_give_a_message_or_a_message_error(self, data):
        message = bytearray(dictionary().to_bytes())
        for _ in range(3):
            position = data.draw(st.integers(0, len(message) - 1))
            message[position] = data.draw(st.integers(0, 255))
        with contextlib.suppress(MessageError):  # nothing else may be raised
            LDPQuery.from_bytes(bytes(message))

    @pytest.mark.parametrize("cut", [1, 8, 17])
    @pytest.mark.parametrize(
        "message", [stencil(), dictionary(), answer()], ids=["s", "d", "a"]
    )
    def test_too_short_or_too_long(self, message, cut):
        data = message.to_bytes()
        for damaged in (data[:-cut], data + bytes(cut)):
            with pytest.raises(MessageError, match=r"numbers|within a number|bytes"):
                type(message).from_bytes(damaged)

    def test_another_version(self):
        data = bytearray(stencil().to_bytes())
        data[4:6] = struct.pack("<H", VERSION + 1)
        with pytest.raises(
            MessageError, match=f"version {VERSION + 1}, but .* {VERSION}"
        ):
            LDPQuery.from_bytes(bytes(data))

    def test_the_other_kind(self):
        with pytest.raises(MessageError, match="not an answer"):
            LDPAnswer.from_bytes(stencil().to_bytes())
        with pytest.raises(MessageError, match="not a query"):
            LDPQuery.from_bytes(answer().to_bytes())
        data = bytearray(stencil().to_bytes())
        data[6:8] = struct.pack("<H", 9)
        with pytest.raises(MessageError, match="unknown kind, 9"):
            LDPQuery.from_bytes(bytes(data))

    def test_a_header_that_promises_too_much(self):
        data = bytearray(dictionary().to_bytes())
        data[32:40] = struct.pack("<II", 2**31, 2**31)
        with pytest.raises(MessageError, match="header announces"):
            LDPQuery.from_bytes(bytes(data))

    def test_makes_no_sense(self):
        data = bytearray(stencil().to_bytes())
        data[40:48] = struct.pack("<d", -1.0)
        with pytest.raises(MessageError, match="is invalid: half_width"):
            LDPQuery.from_bytes(bytes(data))
        data = bytearray(answer().to_bytes())
        data[24:32] = struct.pack("<Q", 0)
        with pytest.raises(MessageError, match="is invalid: step"):
            LDPAnswer.from_bytes(bytes(data))

    def test_too_large(self):
        with pytest.raises(MessageError, match=f"at most {MAX_BYTES} bytes"):
            LDPQuery.from_bytes(bytes(MAX_BYTES + 1))
        big = torch.zeros(1, **DOUBLE).expand(MAX_BYTES // 8 + 1)
        with pytest.raises(MessageError, match="more than"):
            LDPAnswer(RUN, 1, big).to_bytes()

    def test_a_small_message_that_asks_for_a_large_stencil(self):
        x = torch.zeros(2048, **DOUBLE)
        message = bytearray(LDPQuery(RUN, 1, x, 0.1).to_bytes())
        message[32:36] = struct.pack("<I", 2049)
        with pytest.raises(MessageError, match="at most 2048 numbers for a stencil"):
            LDPQuery.from_bytes(bytes(message) + bytes(8))

    def test_not_bytes(self):
        with pytest.raises(MessageError, match="must be bytes, got str"):
            LDPQuery.from_bytes("LDPQ")


class TestRefuses:
    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            (
                {"weights": torch.zeros(3, 5, **DOUBLE)},
                "weights must be a 3 x 4 tensor",
            ),
            (
                {"weights": torch.zeros(4, 3, **DOUBLE)},
                "weights must be a 3 x 4 tensor",
            ),
            (
                {"points": torch.zeros(4, 2, **DOUBLE)},
                "points must be an M x 3 tensor",
            ),
            (
                {"points": torch.zeros(0, 3, **DOUBLE)},
                "points must be an M x 3 tensor",
            ),
            ({"x": torch.zeros(1, 3, **DOUBLE)}, "x must be a p tensor"),
            ({"half_width": 0.2}, "either a half_width"),
            ({"weights": None}, "either a half_width"),
        ],
    )
    def test_a_dictionary_that_does_not_match(self, changes, match):
        with pytest.raises(InvalidArgumentError, match=match):
            dictionary(**changes)

    def test_names_and_numbers(self):
        x = torch.zeros(2, **DOUBLE)
        with pytest.raises(InvalidArgumentError, match="run_id must be 16 bytes"):
            LDPQuery(b"short", 1, x, 0.1)
        with pytest.raises(InvalidArgumentError, match="step must be a whole number"):
            LDPQuery(RUN, 0, x, 0.1)
        with pytest.raises(InvalidArgumentError, match="gradient must be a p tensor"):
            LDPAnswer(RUN, 1, [0.0])
        with pytest.raises(InvalidArgumentError, match="gradient must be a p tensor"):
            LDPAnswer(RUN, 1, x.to(torch.complex128))
        with pytest.raises(
            InvalidArgumentError, match=r"gradient must be a p tensor .*\(1, 2\)"
        ):
            LDPAnswer(RUN, 1, x.unsqueeze(0))
