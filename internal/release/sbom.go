package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// sbom returns an SPDX document that lists the modules of the program, which Go records in it.
func (p *product) sbom() []byte {
	const none = "NOASSERTION"
	goVersion := &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(p.info.GoVersion, "go")}
	program := &debug.Module{Path: modulePath, Version: p.version}
	var components, relationships []map[string]any
	for i, module := range append([]*debug.Module{program, goVersion}, p.info.Deps...) {
		id := fmt.Sprintf("SPDXRef-%d", i)
		component := map[string]any{
			"SPDXID": id, "name": module.Path, "versionInfo": module.Version, "filesAnalyzed": false,
			"downloadLocation": none, "licenseConcluded": none, "licenseDeclared": none, "copyrightText": none,
			"externalRefs": []map[string]string{{
				"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
				"referenceLocator": "pkg:golang/" + module.Path + "@" + strings.ReplaceAll(module.Version, "+", "%2B"),
			}},
		}
		if module.Sum != "" {
			component["comment"] = "go.sum: " + module.Sum
		}
		relation := map[string]any{"spdxElementId": "SPDXRef-0", "relationshipType": "CONTAINS", "relatedSpdxElement": id}
		if i == 0 {
			component["licenseDeclared"] = "Apache-2.0"
			relation["spdxElementId"], relation["relationshipType"] = "SPDXRef-DOCUMENT", "DESCRIBES"
		}
		components, relationships = append(components, component), append(relationships, relation)
	}
	out, err := json.MarshalIndent(map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
		"name":              fmt.Sprintf("larder %s for %s/%s", p.version, p.os, p.arch),
		"documentNamespace": fmt.Sprintf("https://%s/spdx/%s/%x", modulePath, p.version, sha256.Sum256(p.program)),
		"creationInfo":      map[string]any{"created": p.time.Format(time.RFC3339), "creators": []string{"Organization: The Larder Authors"}},
		"packages":          components, "relationships": relationships,
	}, "", "  ")
	if err != nil {
		panic(err) // cannot happen for strings
	}
	return append(out, '\n')
}
