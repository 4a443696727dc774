"""Runs rdma-core's run_tests.py and writes one line per test to a file: name, outcome, reason.

usage: results.py FILE [arguments of run_tests.py]
"""
import os
import runpy
import sys
import unittest

import newer

results = open(sys.argv[1], "a", buffering=1)


def one_line(text):
    return " ".join(str(text).split())


class Recorder(unittest.TextTestResult):
    def startTestRun(self):
        super().startTestRun()
        newer.complete(sys.modules["tests.base"])

    def record(self, test, outcome, reason=""):
        results.write(f"{test.id()}\t{outcome}\t{one_line(reason)}\n")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.record(test, "pass")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.record(test, "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.record(test, "fail", err[1])

    def addError(self, test, err):
        super().addError(test, err)
        self.record(test, "fail", err[1])


unittest.TextTestRunner.resultclass = Recorder
sys.argv = sys.argv[2:]
sys.path.insert(0, ".")
newer.name_enums()
# The suite looks for its files where its script's absolute path says.
runpy.run_path(os.path.abspath(sys.argv[0]), run_name="__main__")
