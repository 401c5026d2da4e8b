package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

const (
	headerKey  = "x-mcp-header"
	maxHeaders = 64 // of one schema
	maxNesting = 16 // of the properties that they are on
)

// Header is an argument that HTTP requests repeat in the header Mcp-Param-Name
// (2026-07-28, Tools, x-mcp-header).
type Header struct {
	Path []string // of properties, from the arguments' root
	Name string
}

// fieldName is a token of HTTP's (RFC 9110, 5.6.2).
var fieldName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$")

// Headers finds the annotations of a tool's input schema. A client over HTTP
// must refuse a tool for which it returns an error.
func Headers(raw []byte) ([]Header, error) { return headersIn(raw, nil, nil) }

func headersIn(raw []byte, path []string, found []Header) ([]Header, error) {
	properties, _ := relay.Member(raw, "properties")
	all := properties.Of(raw)
	if len(all) == 0 || all[0] != '{' {
		return found, nil
	}
	if len(path) == maxNesting {
		return nil, nil // no server repeats what lies that deep
	}
	var err error
	perr := relay.Members(all, func(name string, v relay.Span) bool {
		property := v.Of(all)
		if len(property) == 0 || property[0] != '{' {
			return true
		}
		at := append(append([]string(nil), path...), name)
		if want, has := relay.Member(property, headerKey); has {
			var h Header
			if h, err = header(at, want.Of(property), property, found); err != nil {
				return false
			}
			found = append(found, h)
		}
		found, err = headersIn(property, at, found)
		return err == nil
	})
	return found, errors.Join(err, perr)
}

func header(path []string, want, property []byte, found []Header) (Header, error) {
	h := Header{Path: path}
	where := fmt.Sprintf("property %q: x-mcp-header", relay.Cut([]byte(strings.Join(path, ".")), 80))
	kind, _ := relay.Member(property, "type")
	switch string(kind.Of(property)) {
	case `"string"`, `"integer"`, `"boolean"`:
	default:
		return h, fmt.Errorf("%s is for a string, an integer or a boolean", where)
	}
	if json.Unmarshal(want, &h.Name) != nil || !fieldName.MatchString(h.Name) {
		return h, fmt.Errorf("%s is no name of a header", where)
	}
	for _, o := range found {
		if strings.EqualFold(o.Name, h.Name) {
			return h, fmt.Errorf("%s is the one of another property", where)
		}
	}
	if len(found) == maxHeaders {
		return h, fmt.Errorf("%s: more than %d", where, maxHeaders)
	}
	return h, nil
}
