"""Opens a page in headless Chromium and does what it is told, by the DevTools protocol.

    browse.py PAGE WIDTH HEIGHT [SCREENSHOT]  < steps

Steps, a line each: `key NAME` presses a key, `eval EXPRESSION` prints its value as JSON. At the end every message of the
console that is an error, and every exception, is printed as `error …`. The first line is the milliseconds from the
start of navigation to the page's first full frame.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64decode
from pathlib import Path

import websocket

KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, " ": 32}


class Page:
    def __init__(self, url):
        self.socket = websocket.create_connection(url, suppress_origin=True, timeout=60)
        self.n, self.events = 0, []

    def call(self, method, **params):
        self.n += 1
        self.socket.send(json.dumps({"id": self.n, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.n:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.events.append(message)

    def wait(self, method):
        while not any(e.get("method") == method for e in self.events):
            self.events.append(json.loads(self.socket.recv()))

    def eval(self, expression):
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, (expression, done["exceptionDetails"])
        return done["result"].get("value")

    def key(self, name):
        common = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
        text = {"text": "\r"} if name == "Enter" else {"text": " "} if name == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)


def main(page, width, height, screenshot=None):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-port=0", f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        try:
            port = Path(profile) / "DevToolsActivePort"
            for _ in range(1200):
                if port.exists() and port.read_text().strip():
                    break
                time.sleep(0.05)
            at = port.read_text().split()[0]
            pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{at}/json"))
            p = Page(next(t["webSocketDebuggerUrl"] for t in pages if t["type"] == "page"))
            for domain in ["Page", "Runtime", "Log"]:
                p.call(f"{domain}.enable")
            p.call("Page.navigate", url=Path(page).resolve().as_uri())
            p.wait("Page.loadEventFired")
            frame = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(performance.now()))))"
            print(p.eval(frame))
            for line in sys.stdin.read().splitlines():
                what, _, rest = line.partition(" ")
                if what == "key":
                    p.key(rest)
                else:
                    print(json.dumps(p.eval(rest)))
            if screenshot:
                shot = p.call("Page.captureScreenshot", format="png")
                Path(screenshot).write_bytes(b64decode(shot["data"]))
            for e in p.events:
                params = e.get("params", {})
                if e.get("method") == "Runtime.exceptionThrown":
                    print("error", json.dumps(params["exceptionDetails"]))
                if e.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                    print("error", json.dumps(params["entry"]))
                if e.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                    print("error", json.dumps(params))
        finally:
            browser.kill()
            browser.wait()


main(*sys.argv[1:])
