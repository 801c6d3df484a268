package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// explain names the flag that err is about, if err tells the value that was given for one and
// not for which: "open missing.csv: no such file or directory" says too little where a dozen
// flags name files. The longest value that err tells is taken for its reason.
func explain(err error, fs *pflag.FlagSet) error {
	if err == nil {
		return nil
	}
	text, longest := err.Error(), 0
	var about *pflag.Flag
	named := false
	fs.Visit(func(flag *pflag.Flag) {
		named = named || mentions(text, flag.Name)
		for _, value := range valuesOf(flag) {
			if len(value) > longest && mentions(text, value) {
				about, longest = flag, len(value)
			}
		}
	})
	if named || about == nil {
		return err
	}
	return fmt.Errorf("--%s: %w", about.Name, err)
}

// valuesOf returns what a flag was given, in the parts that lists and maps have.
func valuesOf(flag *pflag.Flag) []string {
	return strings.FieldsFunc(flag.Value.String(), func(r rune) bool { return strings.ContainsRune(",;=#[]", r) })
}

// telling is a word that says which flag it was given for: no number and no duration.
var telling = regexp.MustCompile(`[A-Za-z./]{3}`)

// mentions reports whether text has a word that tells something.
func mentions(text, word string) bool {
	if !telling.MatchString(word) || word == "true" || word == "false" {
		return false
	}
	const boundary = `(^|[^A-Za-z0-9_./-])`
	found, err := regexp.MatchString(boundary+`(--)?`+regexp.QuoteMeta(word)+`($|[^A-Za-z0-9_./-])`, text)
	return found && err == nil
}
