"""Drive a headless Chromium by the DevTools protocol over pipes, without a driver or package."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60.0


def executable():
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser. errors: what it logged as errors and warnings; requests: the URLs it requested."""

    def __init__(self, commands, answers):
        self.commands, self.answers = commands, answers
        self.number, self.errors, self.requests = 0, [], []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send a command and return its result; record the events that arrive before it."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self._read()).get("id") != self.number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _read(self):
        content = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has ended")
            content += byte
        return json.loads(content)

    def _note(self, event):
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(parameters["exceptionDetails"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(parameters["args"])
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def run(self, expression):
        """Evaluate a JavaScript expression, await it if it is a promise, and return its value."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def wait_for(self, expression):
        deadline = time.monotonic() + TIMEOUT_S
        while not self.run(expression):
            assert time.monotonic() < deadline, f"waited in vain for {expression}"
            time.sleep(0.05)

    def look(self, width=1280, height=900, dark=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path):
        """Clear errors and requests, open a file, and wait until its page is fully shown."""
        self.errors, self.requests = [], []
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.body?.dataset.ready === 'yes'")

    def marks(self, chart):
        bars = f"document.querySelectorAll('[data-chart=\"{chart}\"] .mark-rect.role-mark path')"
        return self.run(f"{bars}.length")


@contextmanager
def started(profile) -> Iterator[Browser]:
    (to_read, commands), (answers, to_write) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    words = [executable(), *options, f"--user-data-dir={profile}"]
    # The browser takes its commands from descriptor 3 and answers on 4.
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "_", *words],
        pass_fds=(to_read, to_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        with os.fdopen(commands, "wb") as command_stream, os.fdopen(answers, "rb") as answer_stream:
            opened = Browser(command_stream, answer_stream)
            yield opened
            opened.session = None
            opened.call("Browser.close")
    finally:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
