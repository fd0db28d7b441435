"""A relay that delivers some requests a second time, late and on a connection of their own.

A network does this to a request whose client timed out and sent it again: the first copy may arrive when the client is
long in its next transaction.
"""

import socket
import struct
import threading

ADD_PARTITIONS, END = 24, 26
REQUEST_API = struct.Struct(">hh")


class LateProxy:
    """Relay to `target`; clients must connect to its `port` (advertised.listeners).

    Copies of requests of the API keys in `late` are delivered just before the first request of the key `begins` after
    an EndTxn. `answers` has the answers to the copies: (API key, version, bytes).
    """

    def __init__(self, target, late, begins):
        self.target, self.late, self.begins = target, frozenset(late), begins
        self.answers = []
        self._kept, self._has_ended = [], False
        self._lock = threading.Lock()
        self._open = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()
        for each in self._open:
            each.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self._open += [client, server]
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client, server):
        try:
            while (frame := read_frame(client)) is not None:
                key, _ = REQUEST_API.unpack_from(frame, 4)
                with self._lock:
                    self._deliver(self._due(key))
                    server.sendall(frame)
                    if key in self.late:
                        self._kept.append(frame)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _due(self, key):
        """Return the copies to deliver around a request with this key."""
        if key == self.begins and self._has_ended:
            due, self._kept, self._has_ended = self._kept, [], False
            return due
        self._has_ended = self._has_ended or key == END
        return []

    def _deliver(self, frames):
        for frame in frames:
            with socket.create_connection(("127.0.0.1", self.target)) as side:
                side.sendall(frame)
                answer = read_frame(side)
            if answer is not None:
                self.answers.append((*REQUEST_API.unpack_from(frame, 4), answer[4:]))

    def _answers(self, server, client):
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def read_frame(sock):
    """Return a frame with its length in front; None at the end."""
    data = b""
    wanted = 4
    while len(data) < wanted:
        part = sock.recv(wanted - len(data))
        if not part:
            return None
        data += part
        if len(data) == 4 == wanted:
            wanted += struct.unpack(">i", data)[0]
    return data
