package difftest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// compareOpenAPIv2 compares the OpenAPI v2 documents member by member. Members that both servers have must be equal,
// byte for byte.
func (c *comparison) compareOpenAPIv2() {
	r := get("/openapi/v2", js)
	if len(selected([]request{r})) == 0 {
		return
	}
	var difference string
	for range tries {
		stock, larder := c.f.sendBoth(r)
		if difference = differentMembers(stock, larder); difference == "" {
			break
		}
		c.catchUp(get(definitions, js))
	}
	c.reportDifference("members of "+r.String(), difference)
}

func differentMembers(stock, larder response) string {
	var ours, theirs map[string]json.RawMessage
	for _, side := range []struct {
		a  response
		to *map[string]json.RawMessage
	}{{stock, &theirs}, {larder, &ours}} {
		if side.a.code != http.StatusOK {
			return fmt.Sprintf("status %d, error %v", side.a.code, side.a.err)
		}
		if err := json.Unmarshal(side.a.body, side.to); err != nil {
			return err.Error()
		}
	}
	var out string
	for _, section := range []string{"paths", "definitions", "parameters"} {
		var own, other map[string]json.RawMessage
		if err := json.Unmarshal(ours[section], &own); err != nil {
			return err.Error()
		}
		if err := json.Unmarshal(theirs[section], &other); err != nil {
			return err.Error()
		}
		names := maps.Clone(own)
		maps.Copy(names, other)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if !bytes.Equal(own[name], other[name]) {
				out += fmt.Sprintf("%s %s\n    kube-apiserver %.300s\n    larder         %.300s\n", section, name, other[name], own[name])
			}
		}
		delete(ours, section)
		delete(theirs, section)
	}
	for name := range theirs {
		if !bytes.Equal(ours[name], theirs[name]) {
			out += fmt.Sprintf("%s\n    kube-apiserver %.300s\n    larder         %.300s\n", name, theirs[name], ours[name])
		}
	}
	return out
}
