package casefile

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Case is one line of a cases file.
type Case struct {
	ID       string                     `json:"id"`
	Kind     string                     `json:"kind"` // ip, host, url, policy, dns, sni or redirect_chain
	Input    json.RawMessage            `json:"input"`
	Policy   json.RawMessage            `json:"policy,omitempty"`
	Resolver map[string]json.RawMessage `json:"resolver,omitempty"`
	Expect   Outcome                    `json:"expect"`
	Code     string                     `json:"code,omitempty"`
	Detail   *Detail                    `json:"expect_detail,omitempty"`
	Reason   string                     `json:"reason,omitempty"`
	Source   string                     `json:"source,omitempty"`
	Basis    string                     `json:"basis,omitempty"`
}

// Outcome is a verdict in a cases file's words.
type Outcome string

// The outcomes. Deny is well formed and refused; Invalid is malformed and
// refused before the policy is asked.
const (
	Allow   Outcome = "allow"
	Deny    Outcome = "deny"
	Invalid Outcome = "invalid"
)

// Detail is what else must hold. Absent fields are not compared.
type Detail struct {
	Dial        []string `json:"dial,omitempty"` // addresses dialled, in order
	Resolutions *int     `json:"resolutions,omitempty"`
	FinalURL    string   `json:"final_url,omitempty"`
	FinalMethod string   `json:"final_method,omitempty"`
	Sent        []string `json:"sent,omitempty"` // the caller's headers at the last hop
	Hops        *int     `json:"hops,omitempty"`
}

// defaultPolicy stands for a case without one. Only cases files have such a
// default: a product without a policy denies everything.
var defaultPolicy = []byte(`{"mode":"public"}`)

// parse reads one line strictly.
func parse(line []byte) (Case, error) {
	var c Case
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, fmt.Errorf("case %q: %w", c.ID, err)
	}
	switch c.Expect {
	case Allow, Deny, Invalid:
	default:
		return c, fmt.Errorf("case %q: expect is %q, neither allow, deny nor invalid", c.ID, c.Expect)
	}
	if c.ID == "" {
		return c, fmt.Errorf("a case has no id")
	}
	if len(c.Policy) == 0 || string(c.Policy) == "null" {
		c.Policy = defaultPolicy
	}
	return c, nil
}

// decode reads a case's input strictly into one of the kinds' shapes.
func decode(raw json.RawMessage, into any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	return nil
}
