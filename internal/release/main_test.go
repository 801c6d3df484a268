package main

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// released names a program that release has built for this machine: the tests of packages
// pack that one.
var released = flag.String("program", "", "static program to pack in TestPackages")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
