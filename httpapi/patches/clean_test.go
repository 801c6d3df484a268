package patches

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestCleanJSONHasNoMemberTwice draws JSON, and what is nearly JSON: in what is clean, YAML finds
// nothing when it reads strictly that it does not find otherwise.
func TestCleanJSONHasNoMemberTwice(t *testing.T) {
	t.Parallel()
	var clean, dirty, twice int
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := drawJSON(r, 4)
		if r.IntN(3) == 0 {
			at := r.IntN(len(data))
			odd := []string{"\\", "\"", "<<", ",", "{", "}", ":", "# ", "\n", "\t", "\\u0061", "é", "!!", "&a ", "*a", "---\n", "1.0", "[", "]"}
			data = data[:at] + odd[r.IntN(len(odd))] + data[min(len(data), at+r.IntN(2)):]
		}
		var loose, strict map[string]any
		err, strictErr := yaml.Unmarshal([]byte(data), &loose), yaml.UnmarshalStrict([]byte(data), &strict)
		switch isClean := isClean([]byte(data)); {
		case isClean && fmt.Sprint(err) != fmt.Sprint(strictErr):
			t.Fatalf("%s is clean, but YAML says %v, not %v", data, strictErr, err)
		case isClean && err == nil:
			clean++
		case !isClean && err == nil && strictErr == nil:
			dirty++
		case strictErr != nil && err == nil:
			twice++
		}
	}
	t.Logf("%d are clean, %d have a member twice, %d have neither", clean, twice, dirty)
	if clean < 3000 || twice < 1000 || dirty > clean {
		t.Errorf("%d are clean, %d have a member twice, %d have neither", clean, twice, dirty)
	}
}

// drawJSON draws an object, in which members may come twice.
func drawJSON(r *rand.Rand, depth int) string {
	var members []string
	for range r.IntN(5) {
		members = append(members, fmt.Sprintf("%q:%s", []string{"a", "b", "c", "d", "e", "name", "a b", "true", "1"}[r.IntN(9)], drawValue(r, depth-1)))
	}
	return "{" + strings.Join(members, []string{",", ", ", " , "}[r.IntN(3)]) + "}"
}

func drawValue(r *rand.Rand, depth int) string {
	switch n := r.IntN(8); {
	case n < 3 && depth > 0:
		return drawJSON(r, depth)
	case n < 5 && depth > 0:
		var items []string
		for range r.IntN(4) {
			items = append(items, drawValue(r, depth-1))
		}
		return "[" + strings.Join(items, ",") + "]"
	case n < 7:
		return []string{`"a"`, `"a: b"`, `"{\"a\":1,\"a\":2}"`, `"\\"`, `""`}[r.IntN(5)]
	}
	return []string{"1", "1.5", "null", "true", "-3"}[r.IntN(5)]
}
