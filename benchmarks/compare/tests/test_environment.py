"""Peers that cannot run are named with the reason and take no part."""

import os
import tempfile
import unittest

import contestants
import environment


class MissingPeersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.places = environment.Places(here=folder.name, programs=f"{folder.name}/bin",
                                         venv=folder.name, logs=folder.name)

    def drop(self, missing, with_ucx=True):
        if with_ucx:
            for path in (f"{self.places.programs}/compare_ucx", self.places.ucx_plugin):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="ascii"):
                    pass
        groups, absent = environment.drop_missing(contestants.GROUPS, self.places, missing)
        left = {one.name for group in groups for one in group.contestants}
        return left, {one["name"]: one["reason"] for one in absent}

    def test_all_take_part_where_nothing_is_missing(self):
        left, absent = self.drop({})
        self.assertEqual(absent, {})
        self.assertIn("NIXL tcp", left)

    def test_a_package_takes_its_contestants_along(self):
        left, absent = self.drop({"nixl-cu12": "no network"})
        self.assertEqual(absent["NIXL sm, progress thread"], "no network")
        self.assertNotIn("NIXL tcp", left)
        self.assertLessEqual({"kvxfer tcp", "Mooncake tcp", "UCX put 1.22 tcp"}, left)

    def test_without_the_tools_no_peer_in_python_runs(self):
        left, absent = self.drop({"": "no numpy"})
        self.assertEqual(absent["Mooncake tcp"], "no numpy")
        self.assertIn("UCX put 1.22 tcp", left)

    def test_without_headers_ucx_is_missing(self):
        _, absent = self.drop({}, with_ucx=False)
        self.assertIn("libucx-dev", absent["UCX put 1.13 tcp"])
        self.assertIn("libkvxfer_backend_ucx.so", absent["kvxfer ucx tcp"])
        self.assertNotIn("kvxfer tcp", absent)

    def test_packages_that_cannot_be_installed_end_nothing(self):
        said = []
        os.mkdir(f"{self.places.here}/scripts")
        setup = f"{self.places.here}/scripts/setup"
        with open(setup, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\n[ \"$*\" = --python ]\n")
        os.chmod(setup, 0o755)
        environment.install_packages(self.places.here, ["--python"], said.append)
        self.assertEqual(said, [])
        environment.install_packages(self.places.here, [], said.append)
        self.assertEqual(said, ["scripts/setup failed; goes on with what is installed"])

    def test_no_virtual_environment_is_a_reason_not_a_failure(self):
        file = f"{self.places.venv}/file"
        with open(file, "w", encoding="ascii"):
            pass
        missing = environment.set_up_peers(f"{file}/venv", lambda line: None)
        self.assertEqual(set(missing), {"", *environment.PEERS})
        self.assertIn("virtual environment", missing[""])


class ContestantsTest(unittest.TestCase):
    def test_every_group_has_one_raw(self):
        for group in contestants.GROUPS:
            kinds = [one.kind for one in group.contestants]
            self.assertEqual(kinds.count("raw"), 1, group.name)
            self.assertGreaterEqual(kinds.count("kvxfer"), 1, group.name)
            self.assertEqual(kinds[0], "kvxfer", group.name)

    def test_kvxfer_and_its_raw_have_as_many_threads_and_spin_alike(self):
        for group in contestants.GROUPS:
            raw = next(one for one in group.contestants if one.kind == "raw")
            for one in group.contestants:
                if one.kind == "kvxfer":
                    self.assertEqual(one.spin, raw.spin, group.name)
                    if not group.ping:
                        self.assertEqual(one.threads, raw.threads, group.name)

    def test_names_are_unique_within_a_group(self):
        for group in contestants.GROUPS:
            names = [one.name for one in group.contestants]
            self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
