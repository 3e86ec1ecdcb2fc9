"""Places of another machine: a context that serves, and one that copies to and from it."""

import os
import threading
import unittest
import urllib.request

import sidestep
from package import MACHINE, PackageTest


class NetworkTest(PackageTest):
    def setUp(self):
        super().setUp()
        (self.folder / "out").mkdir()
        self.serving = self.context.serve(f"gpu:*,file:{self.folder}/out=rw", listen="127.0.0.1:0",
                                          key_file=self.folder / "key", name="here")
        self.client = sidestep.Context(MACHINE, nodes=f"n={self.serving.addresses[0]}", key_file=self.folder / "key")

    def test_files_there_and_back(self):
        data = os.urandom(2_000_001)
        receipt = self.client.copy(data, f"n/file:{self.folder}/out/file", verify=True)
        self.assertEqual((receipt.bytes, receipt.verified), (len(data), True))
        self.assertEqual((self.folder / "out/file").read_bytes(), data)
        back, part = bytearray(len(data)), bytearray(1000)
        self.client.copy(f"n/file:{self.folder}/out/file", back)
        self.client.copy(f"n/file:{self.folder}/out/file@1001+1000", part)
        self.assertEqual((bytes(back), bytes(part)), (data, data[1001:2001]))
        self.assertIn("tcp", self.client.copy(data, f"n/file:{self.folder}/out/file").explain())
        clients, received, sent = self.serving.counts()
        self.assertEqual(clients, 1)
        self.assertGreaterEqual(min(received, sent), len(data))

    def test_what_it_says(self):
        self.assertEqual(self.serving.allowed, ["gpu:*", f"file:{self.folder}/out=rw"])
        self.assertEqual(os.stat(self.serving.key_file).st_mode & 0o777, 0o600)

    def test_metrics(self):
        self.assertEqual(self.serving.metrics_addresses, [])
        self.assertIn("\nsidestep_clients 0\n", self.serving.metrics())
        with_page = self.context.serve("host", listen="127.0.0.1:0", key_file=self.folder / "key", metrics="127.0.0.1:0")
        (address,) = with_page.metrics_addresses
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
            self.assertIn("\nsidestep_clients 0\n", page.read().decode())

    def test_notifications(self):
        serving = self.context.serve("host", listen="127.0.0.1:0", key_file=self.folder / "key", notifications=2, rate=1 << 30)
        client = sidestep.Context(MACHINE, nodes=f"n={serving.addresses[0]}", key_file=self.folder / "key",
                                  network_checksums=True)
        self.assertIsNone(serving.next_notification(1))
        client.notify("n", "bl\u00f6ck")
        client.notify("n", b"\x00\xff")
        with self.assertRaises(sidestep.Error) as caught:
            client.notify("n", "one too many")
        self.assertEqual(caught.exception.code, "out_of_memory")
        who, text = serving.next_notification(1000)
        self.assertTrue(who.startswith("127.0.0.1:"), who)
        self.assertEqual((text, serving.next_notification(0)[1]), ("bl\u00f6ck".encode(), b"\x00\xff"))
        late = threading.Timer(0.2, client.notify, ("n", "late"))
        late.start()
        for_years = serving.next_notification(2 ** 62)
        late.join()
        self.assertEqual(for_years and for_years[1], b"late")
        self.assertIsNone(serving.next_notification(-2 ** 62))
        with self.assertRaises(sidestep.Error) as caught:
            self.client.notify("n", "nobody takes it")
        self.assertEqual(caught.exception.code, "unsupported")

    def test_encryption(self):
        encrypting = sidestep.Context(MACHINE, nodes=f"n={self.serving.addresses[0]}", key_file=self.folder / "key",
                                      network_encryption=True)
        (self.folder / "out" / "some").write_bytes(b"some bytes")
        back = bytearray(10)
        receipt = encrypting.copy(f"n/file:{self.folder}/out/some", back)
        self.assertEqual(bytes(back), b"some bytes")
        self.assertTrue(any("encrypted by" in note for note in receipt.notes), receipt.notes)

    def test_what_is_refused(self):
        (self.folder / "secret").write_bytes(b"secret")
        with self.assertRaises(sidestep.Error) as caught:
            self.client.copy(f"n/file:{self.folder}/secret", bytearray(6))
        self.assertEqual(caught.exception.code, "permission_denied")
        with self.assertRaises(sidestep.Error) as caught:
            sidestep.Context(MACHINE, nodes="n=")
        self.assertEqual(caught.exception.code, "invalid_argument")
        with self.assertRaises(sidestep.Error) as caught:
            self.context.serve("nonsense", listen="127.0.0.1:0", key_file=self.folder / "key")
        self.assertEqual(caught.exception.code, "invalid_argument")
        del self.serving
        with self.assertRaises(sidestep.Error) as caught:
            self.client.copy(b"1", f"n/file:{self.folder}/out/file")
        self.assertIn(caught.exception.code, ("io_error", "not_found", "cancelled"))


if __name__ == "__main__":
    unittest.main()
