package difftest

import (
	"encoding/json"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"
)

// TestAgesAreNotCompared checks that the ages in Tables, as apimachinery pkg/util/duration writes them, are masked in
// every encoding. Recorded responses are compared on other days, and the clock may even be earlier.
func TestAgesAreNotCompared(t *testing.T) {
	ages := []string{
		"<invalid>", "0s", "1s", "59s", "60s", "119s", "2m", "2m1s", "9m59s", "10m", "179m", "3h", "3h1m", "7h59m", "8h", "47h",
		"2d", "2d1h", "7d23h", "8d", "325d", "729d", "2y", "2y1d", "7y364d", "8y", "56y", "1h", "1d", "1y",
	}
	others := []string{"<unknown>", "12", "5 minutes", "10Mi", "s", "1w", "-5m", "5m ago", "2m/5m", "100m-1"}
	for name, encode := range map[string]func(any) ([]byte, error){
		"JSON":        json.Marshal,
		"pretty JSON": func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") },
		"YAML":        sigsyaml.Marshal,
	} {
		t.Run(name, func(t *testing.T) {
			row := func(age string) string {
				body, err := encode(map[string]any{"rows": []any{map[string]any{"cells": []any{"name", age, "1", 2, age}}}})
				if err != nil {
					t.Fatal(err)
				}
				return string(normalize(body))
			}
			want := row("7s")
			for _, age := range ages {
				if got := row(age); got != want {
					t.Errorf("with the age %s:\n%s\nwith another age:\n%s", age, got, want)
				}
			}
			for _, other := range others {
				if row(other) == want {
					t.Errorf("%q is masked as an age", other)
				}
			}
		})
	}
}
