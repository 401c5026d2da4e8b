package images

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// part is one component of an image, beside the distribution's.
type part struct {
	name, version string
	purl          string // package URL
	alg           cdx.HashAlgorithm
	hash          string // hex; empty for none
}

// billOf writes an image's bill of materials, CycloneDX 1.6 as JSON. The same
// lock makes the same bytes.
func billOf(lock Lock, parts []part) ([]byte, error) {
	bom := cdx.NewBOM()
	main := &cdx.Component{
		BOMRef: lock.Digest, Type: cdx.ComponentTypeContainer, Name: lock.Name, Version: lock.Version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: strings.TrimPrefix(lock.Digest, "sha256:")}},
	}
	bom.Metadata = &cdx.Metadata{Component: main}
	list := []cdx.Component{}
	add := func(p part) {
		c := cdx.Component{BOMRef: p.purl, Type: cdx.ComponentTypeLibrary, Name: p.name, Version: p.version, PackageURL: p.purl}
		if p.hash != "" {
			c.Hashes = &[]cdx.Hash{{Algorithm: p.alg, Value: p.hash}}
		}
		if !slices.ContainsFunc(list, func(have cdx.Component) bool { return have.BOMRef == c.BOMRef }) {
			list = append(list, c)
		}
	}
	for _, d := range lock.Base {
		add(part{d.Name, d.Version, "pkg:deb/debian/" + d.Name + "@" + url.PathEscape(d.Version), cdx.HashAlgoSHA256, d.SHA256})
	}
	for _, p := range parts {
		add(p)
	}
	bom.Components = &list
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// npmParts lists the packages of a settled npm lock, and Node.
func npmParts(lock []byte, node *NodeRelease) []part {
	var doc struct {
		Packages map[string]struct{ Name, Version, Integrity string }
	}
	if json.Unmarshal(lock, &doc) != nil {
		return nil // it was written here
	}
	out := []part{npmPart(nodePackage(), node.Version, node.Integrity)}
	for _, key := range slices.Sorted(maps.Keys(doc.Packages)) {
		if key == "" {
			continue
		}
		e := doc.Packages[key]
		name := e.Name
		if name == "" {
			name = key[strings.LastIndex(key, "node_modules/")+len("node_modules/"):]
		}
		out = append(out, npmPart(name, e.Version, e.Integrity))
	}
	return out
}

func npmPart(name, version, integrity string) part {
	p := part{name: name, version: version, purl: "pkg:npm/" + strings.ReplaceAll(name, "@", "%40") + "@" + url.PathEscape(version)}
	first, _, _ := strings.Cut(integrity, " ")
	kind, value, _ := strings.Cut(first, "-")
	if raw, err := base64.StdEncoding.DecodeString(value); err == nil {
		switch kind {
		case "sha512":
			p.alg, p.hash = cdx.HashAlgoSHA512, hex.EncodeToString(raw)
		case "sha1":
			p.alg, p.hash = cdx.HashAlgoSHA1, hex.EncodeToString(raw)
		}
	}
	return p
}
