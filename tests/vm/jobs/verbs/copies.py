"""sidestep serve and sidestep copy over an RDMA card, and over sockets where the card fails."""

import filecmp
import os
import pathlib
import subprocess
import tempfile
import time

SIDESTEP = [os.environ["SIDESTEP_BIN"], "--machine", "dgx-h100"]
LIMIT_SECONDS = 60
MIB = 1 << 20


class Node:
    """A node that serves below a folder, and copies to and from it."""

    def __init__(self, folder, address):
        self.folder = folder
        self.env = dict(os.environ, SIDESTEP_NODES=f"n={address}", SIDESTEP_KEY_FILE=str(folder / "key"))
        self.process = subprocess.Popen(
            [*SIDESTEP, "serve", "--listen", address, "--allow", f"gpu:*,host,file:{folder}=rw", "--key-file",
             folder / "key"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.env)
        self.process.stdout.readline()

    def copy(self, *words, network="auto"):
        return subprocess.Popen([*SIDESTEP, "copy", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=dict(self.env, SIDESTEP_NETWORK=network))


def told(process):
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out + err


def check(checks):
    address = "127.0.0.1:47900"  # sockets stay when the card's port goes down
    folder = pathlib.Path(tempfile.mkdtemp())
    source = folder / "source"
    source.write_bytes(os.urandom(MIB) * 24)
    node = Node(folder, address)
    for words in (("host", "n/host"), ("n/host", "host"), ("gpu:0", "n/gpu:1"), ("n/gpu:1", "gpu:0")):
        code, text = told(node.copy(*words, "--size", "5MiB", "--verify"))
        checks.same(f"{words}: {text}", (code, "n was reached by verbs" in text), (0, True))
        # Soft-RoCE takes no dma-buf, and memory of an emulated GPU by its address.
        straight = "n moved them over RDMA straight into gpu:1 and out of it, by its address (no dma-buf: " in text
        checks.same(f"{words}: straight: {text}", straight, "n/gpu:1" in words)
    code, text = told(node.copy(f"file:{source}", f"n/file:{folder}/there", "--verify"))
    checks.same(f"a file goes there: {text}", code, 0)
    checks.same("its bytes", filecmp.cmp(source, folder / "there", shallow=False), True)
    code, text = told(node.copy("host", "n/host", "--size", "1MiB", network="tcp"))
    checks.same(f"over sockets: {text}", (code, "verbs" in text), (0, False))
    code, text = told(node.copy("host", "n/host", "--size", "1MiB", network="verbs"))
    checks.same(f"over nothing else: {text}", (code, "n was reached by verbs" in text), (0, True))
    source.write_bytes(os.urandom(MIB) * 96)
    text = lose_a_card(checks, node, source, "")
    checks.same(f"the receipt names the other card: {text}",
                ("n was reached by verbs (rxe1)" in text, "the connection to n was lost once" in text), (True, True))
    text = lose_a_card(checks, node, source, "OTHER_")
    checks.same(f"the receipt names what it fell to: {text}",
                ("n is not reached by verbs any more" in text, "n was reached by tcp" in text), (True, True))
    code, text = told(node.copy("host", "n/host", "--size", "1MiB"))
    checks.same(f"a later copy takes sockets: {text}", (code, "by verbs" in text), (0, False))
    node.process.kill()
    for name in ("SIDESTEP_TEST_NETDEV", "SIDESTEP_TEST_OTHER_NETDEV"):
        subprocess.run(["ip", "link", "set", os.environ[name], "up"], check=True)


def packets_sent(card):
    return int(pathlib.Path(f"/sys/class/infiniband/{card}/ports/1/hw_counters/sent_pkts").read_text())


def wait_for_packets(card, more, process):
    """Until the card has sent so many more, or the process has ended. How long it takes until then is the host's load."""
    begin = packets_sent(card)
    until = time.monotonic() + LIMIT_SECONDS
    while packets_sent(card) < begin + more and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


def lose_a_card(checks, node, source, which):
    """What a copy says whose card goes down midway; it comes whole all the same."""
    card, device = os.environ[f"SIDESTEP_TEST_{which}VERBS"], os.environ[f"SIDESTEP_TEST_{which}NETDEV"]
    target = node.folder / f"moved without {card}"
    process = node.copy(f"file:{source}", f"n/file:{target}")
    wait_for_packets(card, 1000, process)
    checks.same("the copy is under way", process.poll(), None)
    subprocess.run(["ip", "link", "set", device, "down"], check=True)
    code, text = told(process)
    checks.same(f"the copy goes on: {text}", code, 0)
    checks.same("every byte of it", filecmp.cmp(source, target, shallow=False), True)
    print(f"  without {card}: " + " | ".join(text.split("\n")))
    return text
