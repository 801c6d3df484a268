package main

import (
	"fmt"
	"strconv"
)

// faultsFlag is the flag value of --faults: a boolean, or the seed of random faults.
type faultsFlag struct {
	enabled *bool
	seed    *uint64
}

// String implements pflag.Value.
func (f *faultsFlag) String() string {
	if f.seed != nil && *f.seed != 0 {
		return strconv.FormatUint(*f.seed, 10)
	}
	return strconv.FormatBool(f.enabled != nil && *f.enabled)
}

// Set implements pflag.Value.
func (f *faultsFlag) Set(value string) error {
	switch value {
	case "true", "false":
		*f.enabled, *f.seed = value == "true", 0
		return nil
	}
	seed, err := strconv.ParseUint(value, 10, 64)
	if err != nil || seed == 0 {
		return fmt.Errorf("%q is neither a boolean nor a positive number", value)
	}
	*f.enabled, *f.seed = true, seed
	return nil
}

// Type implements pflag.Value.
func (f *faultsFlag) Type() string { return "seed" }
