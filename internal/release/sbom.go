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
	type reference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	type component struct {
		ID         string      `json:"SPDXID"`
		Name       string      `json:"name"`
		Version    string      `json:"versionInfo"`
		Location   string      `json:"downloadLocation"`
		Analyzed   bool        `json:"filesAnalyzed"`
		Concluded  string      `json:"licenseConcluded"`
		Declared   string      `json:"licenseDeclared"`
		Copyright  string      `json:"copyrightText"`
		Comment    string      `json:"comment,omitempty"`
		References []reference `json:"externalRefs"`
	}
	type relationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
	const none = "NOASSERTION"
	goVersion := &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(p.info.GoVersion, "go")}
	program := &debug.Module{Path: modulePath, Version: p.version}
	var components []component
	var relationships []relationship
	for i, module := range append([]*debug.Module{program, goVersion}, p.info.Deps...) {
		c := component{
			ID: fmt.Sprintf("SPDXRef-%d", i), Name: module.Path, Version: module.Version,
			Location: none, Concluded: none, Declared: none, Copyright: none,
			References: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + module.Path + "@" + strings.ReplaceAll(module.Version, "+", "%2B")}},
		}
		if module.Sum != "" {
			c.Comment = "go.sum: " + module.Sum
		}
		relation := relationship{"SPDXRef-0", "CONTAINS", c.ID}
		if i == 0 {
			c.Declared, relation = "Apache-2.0", relationship{"SPDXRef-DOCUMENT", "DESCRIBES", c.ID}
		}
		components, relationships = append(components, c), append(relationships, relation)
	}
	out, err := json.MarshalIndent(map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
		"name":              fmt.Sprintf("larder %s for %s/%s", p.version, p.os, p.arch),
		"documentNamespace": fmt.Sprintf("https://%s/spdx/%s/%x", modulePath, p.version, sha256.Sum256(p.program)),
		"creationInfo":      map[string]any{"created": p.time.Format(time.RFC3339), "creators": []string{"Organization: The Larder Authors"}},
		"packages":          components, "relationships": relationships,
	}, "", "  ")
	if err != nil {
		panic(err) // it has only strings
	}
	return append(out, '\n')
}
