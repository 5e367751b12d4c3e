"""An application on a port of the loopback, and raw connections to it."""

import socket
import threading
import time

import uvicorn

from botorch_dp.integrations.flower.idle_connections import PatientProtocol


class Listening:
    """Listens while it is entered."""

    def __init__(self, app):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = uvicorn.Config(
            app, port=self.port, http=PatientProtocol, ws="none", log_level="warning"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join()

    def connect(self, data=b""):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        connection.sendall(data)
        return connection


def answers(connection):
    """Return what arrives until the other side closes the connection."""
    received = b""
    with connection:
        while data := connection.recv(4096):
            received += data
    return received
