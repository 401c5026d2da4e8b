package mcpbridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// ToolsHash is one hash over a server's tool definitions as tools/list gives
// them: sha256 over a JSON object that maps each tool's name to the hash that
// pins are compared by. The order of the list, white space and the order of
// members do not change it; any other byte of a definition does. A name given
// twice, or a definition that is no JSON object, is an error.
func ToolsHash(defs []json.RawMessage) (string, error) {
	hashes := map[string]string{}
	for _, raw := range defs {
		name, err := definitionName(raw)
		if err != nil {
			return "", err
		}
		c, err := canonical(raw)
		if err != nil {
			return "", fmt.Errorf("tool %.128q: %w", name, err)
		}
		if _, twice := hashes[name]; twice {
			return "", fmt.Errorf("two tools have the name %.128q", name)
		}
		hashes[name] = hash(c)
	}
	b, err := json.Marshal(hashes) // in the order of the names
	if err != nil {
		return "", err
	}
	return hash(b), nil
}

func definitionName(raw json.RawMessage) (name string, err error) {
	if !json.Valid(raw) {
		return "", errors.New("a tool's definition is no JSON")
	}
	span, ok := relay.Member(bytes.TrimSpace(raw), "name")
	if !ok || json.Unmarshal(span.Of(bytes.TrimSpace(raw)), &name) != nil || name == "" {
		return "", errors.New("a tool's definition has no name")
	}
	return name, nil
}

// ApproveAll approves a server's definitions just as they are given, in place
// of what was approved before: for whoever has compared them with a ToolsHash
// that they trust.
func (p *PinStore) ApproveAll(server string, defs []json.RawMessage) error {
	slug := Slug(server)
	if slug == "" {
		return errors.New("a server's name has a letter or digit")
	}
	all := definitions{}
	for _, raw := range defs {
		name, err := definitionName(raw)
		if err != nil {
			return err
		}
		all[name] = raw
	}
	return p.save(slug+".approved", all)
}

// CompareTools lists how a list of tools differs from another, as pins do, by
// the tools' names. Definitions that are no JSON object are errors.
func CompareTools(old, now []json.RawMessage) ([]ToolChange, error) {
	a, err := definitionsOf(old)
	if err != nil {
		return nil, err
	}
	b, err := definitionsOf(now)
	if err != nil {
		return nil, err
	}
	return compare(a, b), nil
}

func definitionsOf(list []json.RawMessage) (definitions, error) {
	out := definitions{}
	for _, raw := range list {
		name, err := definitionName(raw)
		if err != nil {
			return nil, err
		}
		out[name] = raw
	}
	return out, nil
}
