"One headless Chromium, its network cut, spoken to by the DevTools protocol."

import json
import subprocess
import time
from pathlib import Path

import websocket

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --remote-debugging-port=0"
).split() + ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


def leaves(url: str, home: str) -> bool:
    "Does a request ask another host?"
    return url.startswith("http") and not url.startswith(home)


class Browser:
    "A context manager: `open` a page, `ask` it a JavaScript expression; `said` holds the complaints since the page was opened."

    def __init__(self, chromium: str, profile: Path):
        self.command, self.profile = (
            [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            profile,
        )
        self.said, self.n, self.home = [], 0, "file:"  # requests to `home` do not leave

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        port = self.profile / "DevToolsActivePort"
        until = time.monotonic() + 60
        while not (port.exists() and port.read_text().count("\n")):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.05)
        number, path = port.read_text().split()
        self.socket = websocket.create_connection(
            f"ws://127.0.0.1:{number}{path}", suppress_origin=True, timeout=60
        )
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error):
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)

    def call(self, method: str, **params) -> dict:
        "One command, and its answer; what the page reports meanwhile is noted."
        self.n += 1
        self.socket.send(
            json.dumps(
                {"id": self.n, "method": method, "params": params}
                | ({"sessionId": self.session} if self.session else {})
            )
        )
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.n:
                break
            self.note(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def note(self, message: dict) -> None:
        say = self.said.append
        match message:
            case {"method": "Page.loadEventFired"}:
                self.loaded = True
            case {
                "method": "Runtime.exceptionThrown",
                "params": {"exceptionDetails": d},
            }:
                say(f"error: {d.get('exception', d).get('description', d['text'])}")
            case {"method": "Runtime.consoleAPICalled", "params": p}:
                say(f"console: {' '.join(str(a.get('value')) for a in p['args'])}")
            case {"method": "Log.entryAdded", "params": {"entry": e}}:
                say(f"log: {e['text']} {e.get('url', '')}")
            case {"method": "Network.loadingFailed", "params": p} if not p.get(
                "canceled"
            ):
                say(f"request failed: {p['errorText']}")
            case {"method": "Network.requestWillBeSent", "params": {"request": r}} if (
                leaves(r["url"], self.home)
            ):
                say(f"request leaves: {r['url']}")

    def look(self, width: int, scheme: str) -> None:
        "The page as one sees it on a screen of this width, by a system set to light or dark."
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def open(self, url: str, width: int = 1280, scheme: str = "light") -> None:
        self.look(width, scheme)
        self.said.clear()
        self.loaded = False
        self.call("Page.navigate", url=url)
        while not self.loaded:
            self.note(json.loads(self.socket.recv()))

    def ask(self, expression: str):
        "The value of a JavaScript expression in the page."
        got = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in got:
            raise RuntimeError(
                got["exceptionDetails"]
                .get("exception", {})
                .get("description", "the script failed")
            )
        return got["result"].get("value")


# ---- by pointer, finger and keys


def middle(browser: Browser, selector: str, i: int = 0) -> dict[str, float]:
    "Where on the screen the i-th such element is, once it was scrolled into sight."
    return browser.ask(f"""(e => {{
        e.scrollIntoView({{block: "center"}});
        const box = e.getBoundingClientRect();
        return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
        }})(document.querySelectorAll({json.dumps(selector)})[{i}])""")


def hover(browser: Browser, selector: str, i: int = 0) -> None:
    at = middle(browser, selector, i)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)


def leave(browser: Browser) -> None:
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)


def click(browser: Browser, selector: str, i: int = 0) -> None:
    at = middle(browser, selector, i)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    at |= {"button": "left", "clickCount": 1}
    for what in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=what, **at)


def tap(browser: Browser, selector: str, i: int = 0) -> None:
    at = [middle(browser, selector, i)]
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=at)
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def press(browser: Browser, *names: str) -> None:
    for name in names:
        key = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
        text = {"text": "\r"} if name == "Enter" else {}
        browser.call("Input.dispatchKeyEvent", type="keyDown", **key, **text)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **key)


def wait_for(browser: Browser, condition: str) -> None:
    until = time.monotonic() + 50
    while not browser.ask(condition):
        assert time.monotonic() < until, condition
        time.sleep(0.05)
