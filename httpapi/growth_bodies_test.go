package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/internal/proctest"
)

// listed repeats text n times. text contains one %d and ends with a comma; the last comma is removed.
func listed(n int, text string) string { return strings.TrimSuffix(numbered(n, text), ",") }

// nestedPatch is a patch of an object nested depth deeper than it is itself.
func nestedPatch(depth int, inner string) string {
	return `{"x":` + strings.Repeat(`{"a":`, depth) + inner + strings.Repeat("}", depth) + `}`
}

// piles is a JSON patch that adds n objects nested 90 deep, and moves each but the last to
// where the next is deepest.
func piles(n int) string {
	var b strings.Builder
	b.WriteString(`[{"op":"add","path":"/x0","value":` + nestedPatch(90, "{}") + `}`)
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, `,{"op":"add","path":"/x%d","value":%s},{"op":"move","from":"/x%d","path":"/x%d/x%s/a"}`,
			i, nestedPatch(90, "{}"), i-1, i, strings.Repeat("/a", 90))
	}
	return b.String() + "]"
}

// TestBodyCostIsLinear checks that decoding and patching, up to the store, take work in proportion to the body and
// the stored object. It excludes strategic merge patches of long lists: apimachinery compares each element with all
// others.
func TestBodyCostIsLinear(t *testing.T) {
	larder, _ := newLarder(t)
	larder.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	larder.must(t, post(maps_, `{"metadata":{"name":"there"}}`))
	const (
		all    = "?dryRun=All"
		strict = "?dryRun=All&fieldValidation=Strict"
	)
	deployment := func(name, env string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},` +
			`"spec":{"containers":[{"name":"c","image":"i","env":[` + env + `]}]}}}}`
	}
	for _, n := range []int{1, 200, 200 << proctest.GrowthSteps} {
		larder.must(t, post(deployments, deployment(fmt.Sprint("there", n), listed(n, `{"name":"e%d","value":"v"},`))))
	}
	typed := func(kind string, c call) call { return with(c, "Content-Type", "application/"+kind) }
	for _, test := range []struct {
		name string
		n    int
		call func(n int) call
		code int
	}{
		{name: "JSON of many keys", n: 2000, code: 201, call: func(n int) call {
			return post(maps_+strict, `{"metadata":{"name":"x"},"data":{`+listed(n, `"k%d":"v",`)+`}}`)
		}},
		{name: "JSON of equal keys", n: 4000, code: 400, call: func(n int) call {
			return post(maps_+strict, `{"metadata":{"name":"x"},"data":{`+strings.TrimSuffix(strings.Repeat(`"k":"v",`, n), ",")+`}}`)
		}},
		{name: "JSON of unknown fields", n: 2000, code: 400, call: func(n int) call {
			return post(maps_+strict, `{"metadata":{"name":"x"},`+listed(n, `"k%d":"v",`)+`}`)
		}},
		{name: "JSON of unknown fields that are warned of", n: 2000, code: 201, call: func(n int) call {
			return post(maps_+all, `{"metadata":{"name":"x"},`+listed(n, `"k%d":"v",`)+`}`)
		}},
		{name: "JSON in depth", n: 1200, code: 400, call: func(n int) call {
			return post(maps_+strict, `{"metadata":{"name":"x"},"x":`+strings.Repeat(`{"a":`, n)+"1"+strings.Repeat("}", n)+`}`)
		}},
		{name: "JSON of brackets", n: 20000, code: 400, call: func(n int) call { return post(maps_+strict, strings.Repeat("[", n)) }},
		{name: "JSON of escapes", n: 10000, code: 201, call: func(n int) call {
			return post(maps_+strict, `{"metadata":{"name":"x"},"data":{"k":"`+strings.Repeat(`\u0041`, n)+`"}}`)
		}},
		{name: "JSON of a list", n: 1000, code: 201, call: func(n int) call {
			return post(deployments+strict, deployment("x", listed(n, `{"name":"e%d","value":"v"},`)))
		}},
		{name: "YAML of many keys", n: 1000, code: 201, call: func(n int) call {
			return typed("yaml", post(maps_+strict, "metadata: {name: x}\ndata:\n"+numbered(n, "  k%d: v\n")))
		}},
		{name: "YAML of equal keys", n: 1000, code: 400, call: func(n int) call {
			return typed("yaml", post(maps_+strict, "metadata: {name: x}\ndata:\n"+strings.Repeat("  k: v\n", n)))
		}},
		{name: "YAML of equal keys that are warned of", n: 1000, code: 201, call: func(n int) call {
			return typed("yaml", post(maps_+all, "metadata: {name: x}\ndata:\n"+strings.Repeat("  k: v\n", n)))
		}},
		{name: "YAML in depth", n: 1000, code: 400, call: func(n int) call {
			return typed("yaml", post(maps_+strict, "metadata: {name: x}\nx: "+strings.Repeat("[", n)+strings.Repeat("]", n)+"\n"))
		}},
		{name: "YAML of dashes", n: 1000, code: 400, call: func(n int) call {
			return typed("yaml", post(maps_+strict, "metadata: {name: x}\nx:\n  "+strings.Repeat("- ", n)+"a\n"))
		}},
		{name: "YAML of aliases", n: 1000, code: 400, call: func(n int) call {
			return typed("yaml", post(maps_+strict, "metadata: {name: x}\na: &a [b]\nx: ["+strings.Repeat("*a,", n)+"]\n"))
		}},
		{name: "YAML of anchors", n: 1000, code: 400, call: func(n int) call {
			return typed("yaml", post(maps_+strict, "metadata: {name: x}\nx: ["+numbered(n, "&a%d b,")+"]\n"))
		}},
		{name: "YAML of comments", n: 5000, code: 201, call: func(n int) call {
			return typed("yaml", post(maps_+strict, strings.Repeat("# a\n", n)+"metadata: {name: x}\n"))
		}},
		{name: "YAML of lines", n: 5000, code: 201, call: func(n int) call {
			return typed("yaml", post(maps_+strict, "metadata: {name: x}\ndata:\n  k: |\n"+strings.Repeat("    a\n", n)))
		}},
		{name: "YAML of questions", n: 1000, code: 400, call: func(n int) call {
			return typed("yaml", post(maps_+strict, strings.Repeat("? ", n)+"a\n"))
		}},
		{name: "merge patch of many keys", n: 2000, code: 200, call: func(n int) call {
			return patch("merge-patch+json", maps_+"/there"+strict, `{"data":{`+listed(n, `"k%d":"v",`)+`}}`)
		}},
		{name: "merge patch in depth", n: 1200, code: 400, call: func(n int) call {
			return patch("merge-patch+json", maps_+"/there"+strict, nestedPatch(n, "1"))
		}},
		{name: "merge patch of much in depth", n: 5000, code: 422, call: func(n int) call {
			return patch("merge-patch+json", maps_+"/there"+strict, nestedPatch(patches.MaxDepth-1, `"`+strings.Repeat("v", n)+`"`))
		}},
		{name: "JSON patch in depth", n: 1200, code: 400, call: func(n int) call {
			return patch("json-patch+json", maps_+"/there"+strict, `[{"op":"add","path":"/x","value":`+nestedPatch(n, "1")+`},{"op":"test","path":"/x","value":`+nestedPatch(n, "1")+`}]`)
		}},
		{name: "JSON patch of much in depth", n: 5000, code: 422, call: func(n int) call {
			deep := nestedPatch(patches.MaxDepth-1, `"`+strings.Repeat("v", n)+`"`)
			return patch("json-patch+json", maps_+"/there"+strict, `[{"op":"add","path":"/x","value":`+deep+`},{"op":"test","path":"/x","value":`+deep+`}]`)
		}},
		{name: "JSON patch whose moves pile up", n: 4, code: 400, call: func(n int) call {
			return patch("json-patch+json", maps_+"/there"+strict, piles(20*n))
		}},
		{name: "JSON patch that adds", n: 1000, code: 200, call: func(n int) call {
			return patch("json-patch+json", maps_+"/there"+strict, `[{"op":"add","path":"/data","value":{}},`+listed(n, `{"op":"add","path":"/data/k%d","value":"v"},`)+`]`)
		}},
		{name: "JSON patch that tests", n: 1000, code: 200, call: func(n int) call {
			return patch("json-patch+json", maps_+"/there"+strict, `[`+strings.Repeat(`{"op":"test","path":"/metadata/name","value":"there"},`, n-1)+`{"op":"test","path":"/metadata/name","value":"there"}]`)
		}},
		{name: "strategic patch of many keys", n: 2000, code: 200, call: func(n int) call {
			return patch("strategic-merge-patch+json", maps_+"/there"+strict, `{"data":{`+listed(n, `"k%d":"v",`)+`}}`)
		}},
		{name: "applied keys", n: 1000, code: 200, call: func(n int) call {
			return patch("apply-patch+yaml", maps_+"/there"+strict+"&fieldManager=m&force=true",
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"there"},"data":{`+listed(n, `"k%d":"v",`)+`}}`)
		}},
		{name: "JSON patch that inserts", n: 500, code: 200, call: func(n int) call {
			return patch("json-patch+json", deployments+"/there1"+strict, `[`+listed(n, `{"op":"add","path":"/spec/template/spec/containers/0/env/0","value":{"name":"i%d","value":"v"}},`)+`]`)
		}},
		{name: "applied list", n: 200, code: 200, call: func(n int) call {
			return patch("apply-patch+yaml", fmt.Sprint(deployments, "/there", n)+strict+"&fieldManager=m&force=true",
				`{"apiVersion":"apps/v1","kind":"Deployment",`+deployment(fmt.Sprint("there", n), listed(n, `{"name":"e%d","value":"w"},`))[1:])
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			proctest.OfProcess.CheckGrowth(t, test.n, func(n int) func() {
				c := test.call(n)
				return func() {
					if a := larder.call(t, c); a.code != test.code {
						t.Fatalf("got status %d: %.300s", a.code, a.body)
					}
				}
			})
		})
	}
}
