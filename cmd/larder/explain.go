package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// explain adds a flag's name to an error that contains only the flag's value, such as "open missing.csv: no such file
// or directory". If err contains the values of several flags, explain names the flag with the longest value.
func explain(err error, fs *pflag.FlagSet) error {
	if err == nil {
		return nil
	}
	text, longest := err.Error(), 0
	var match *pflag.Flag
	named := false
	fs.Visit(func(flag *pflag.Flag) {
		named = named || mentions(text, flag.Name)
		parts := strings.FieldsFunc(flag.Value.String(), func(r rune) bool { return strings.ContainsRune(",;=#[]", r) })
		for _, value := range parts {
			if len(value) > longest && mentions(text, value) {
				match, longest = flag, len(value)
			}
		}
	})
	if named || match == nil {
		return err
	}
	return fmt.Errorf("--%s: %w", match.Name, err)
}

// distinctive matches values that identify their flags, unlike numbers and durations.
var distinctive = regexp.MustCompile(`[A-Za-z./]{3}`)

// mentions reports whether text contains word and word identifies a flag.
func mentions(text, word string) bool {
	if !distinctive.MatchString(word) || word == "true" || word == "false" {
		return false
	}
	const boundary = `(^|[^A-Za-z0-9_./-])`
	found, err := regexp.MatchString(boundary+`(--)?`+regexp.QuoteMeta(word)+`($|[^A-Za-z0-9_./-])`, text)
	return found && err == nil
}
