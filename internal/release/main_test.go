package main

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// released names the directory of the programs that a release has built for this machine.
var released = flag.String("programs", "", "directory of the static programs that TestPackages packs")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
