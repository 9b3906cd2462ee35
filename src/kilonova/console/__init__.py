"""The proxy between browsers and the screens of guests: noVNC's pages, and the websocket that they open."""

# Below this first part of a path.
MOUNT = "console"
PAGE, WEBSOCKET = "vnc_auto.html", "websocket"
