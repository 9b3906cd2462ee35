"""Restarts a gabbit server. run-gabbits calls it before each file, so it imports nearly nothing."""

import os
import socket
import sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    path = f"/restart/{os.environ['GABBIT_PROFILE']}"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    answer = connection.recv(1000)
sys.exit(b" 204 " not in answer)
