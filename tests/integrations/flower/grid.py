"""A Flower grid in one process: real messages, real handlers, and faults on demand."""

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from botorch_dp.integrations.flower import client_app
from botorch_dp.integrations.flower.messages import Answer, Question
from examples.flower_on_one_machine import demo

NAME = "0123456789abcdef" * 2


class FakeNode:
    """A supernode: it keeps a context, and starts the app anew for every message."""

    def __init__(self, node_id, agent, run_config, *, state=None, app=client_app.app):
        self.node_id = node_id
        self.node_config = {"agent": agent}
        if state is not None:
            self.node_config["state"] = str(state)
        self.run_config, self.app = run_config, app
        self.state = RecordDict()
        self.public_key = b""
        self.connected = True
        # Rounds, or pairs of a round and a stage of its secure sum.
        self.silent = set()  # in which it does not receive the message
        self.slow = set()  # in which it answers too late
        self.tamper = {}  # what is done to its reply, by round

    def handle(self, message):
        number = int(message.metadata.group_id)
        stage = message.content.get("question", {}).get("stage")
        moments = [number, (number, stage)]
        if not self.silent.isdisjoint(moments):
            return []
        context = Context(
            run_id=1,
            node_id=self.node_id,
            node_config=dict(self.node_config),
            state=self.state,
            run_config=dict(self.run_config),
        )
        try:
            replies = [self.app(message, context)]
        except Exception as error:  # as Flower does
            replies = [Message(Error(code=1, reason=str(error)), reply_to=message)]
        self.state = context.state
        for moment in moments:
            if moment in self.tamper:
                replies = self.tamper[moment](message, replies[0])
        return replies if self.slow.isdisjoint(moments) else []


class FakeGrid(Grid):
    """Delivers at once what arrives at all."""

    def __init__(self, nodes):
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.nodes = {node.node_id: node for node in nodes}
        self.sent = []
        self.poisoned = {}  # by node: what reading its replies raises
        self._replies = []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return [node_id for node_id, node in self.nodes.items() if node.connected]

    def get_nodes(self):
        return [
            NodeInfo(node_id=node_id, public_key=node.public_key)
            for node_id, node in self.nodes.items()
            if node.connected
        ]

    def push_messages(self, messages):
        identifiers = []
        for message in messages:
            identifier = message.object_id
            message.metadata.__dict__["_message_id"] = identifier
            identifiers.append(identifier)
            self.sent.append(message)
            node = self.nodes[message.metadata.dst_node_id]
            received = over_the_wire(message)
            received.metadata.__dict__["_message_id"] = identifier
            # The superlink knows which message a reply was sent for, whatever the
            # reply says of itself.
            self._replies += [
                (identifier, over_the_wire(reply)) for reply in node.handle(received)
            ]
        return identifiers

    def pull_messages(self, message_ids):
        wanted = set(message_ids)
        found = [reply for asked, reply in self._replies if asked in wanted]
        self._replies = [pair for pair in self._replies if pair[0] not in wanted]
        for reply in found:
            if reply.metadata.src_node_id in self.poisoned:
                raise self.poisoned[reply.metadata.src_node_id]
        return found


def over_the_wire(message):
    """Return the message as the other side gets it, from its bytes."""
    with no_object_id_recompute():
        contents = {
            identifier: item.deflate()
            for identifier, item in get_all_nested_objects(message).items()
        }
        return inflate_object_from_contents(message.object_id, contents)


def ask(node, federation, number, broadcast=None, *, final=False, experiment=NAME):
    """Ask as the server does, and return the reply."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    records = Question(federation, experiment, number, broadcast, final).to_records()
    message = Message(records, node.node_id, "query", group_id=str(number))
    (reply,) = node.handle(message)
    return reply


def vector(reply):
    return Answer.from_records(reply.content, 20).private_vector


def counted(agent, points):
    counted.points += len(points)
    return demo.score(agent, points)
