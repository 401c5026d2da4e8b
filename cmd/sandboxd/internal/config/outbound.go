package config

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// DefaultOutboundPath is where serve publishes workflows.
const DefaultOutboundPath = "/mcp-outbound"

// Outbound is what of an engine's workflows is published as MCP tools.
type Outbound struct {
	// Prefix begins the tools' names; empty means the publisher's default.
	Prefix string
	// Path is where serve publishes them; empty means DefaultOutboundPath.
	Path string
	// Workflows are those to publish, in the order of the files.
	Workflows []Workflow
}

// Workflow is one workflow that an engine runs over HTTP.
type Workflow struct {
	ID, Title, Description string
	// InputSchema and OutputSchema are JSON; nil where there is none. Inputs are
	// the other form of the first.
	InputSchema, OutputSchema json.RawMessage
	Inputs                    []WorkflowInput
	// URL, Headers and AllowLocalEndpoint reach the engine; see Server.
	URL                string
	Headers            []Var
	AllowLocalEndpoint bool
	// Timeout bounds a run; 0 means the publisher's default.
	Timeout time.Duration
}

// WorkflowInput is one declared input.
type WorkflowInput struct {
	Name, Type, Description string
	Required                bool
	Default                 json.RawMessage
	Enum                    []json.RawMessage
}

// Server is the workflow's engine as a server on the network, which it is to
// the guard.
func (w Workflow) Server() Server {
	return Server{ID: w.ID, Transport: HTTP, URL: w.URL, Headers: w.Headers, AllowLocalEndpoint: w.AllowLocalEndpoint}
}

var (
	workflowID     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	outboundPrefix = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
	outboundPath   = regexp.MustCompile(`^(/[A-Za-z0-9_-]{1,64}){1,4}$`)
	inputName      = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
)

// published is a workflow with its place.
type published struct {
	Workflow
	node *strict.Node
	path string
}

// outbound takes the section of that name.
func (f *file) outbound(cfg *Config, m strict.Map) {
	n := m.Get("outbound")
	if n == nil {
		return
	}
	o := f.r.Map(n, "outbound", "prefix", "path", "workflows")
	if s := o.String("prefix"); o.Has("prefix") && !f.r.Faulty(o.Path("prefix")) {
		cfg.Outbound.Prefix = s
		if !outboundPrefix.MatchString(s) {
			o.Errorf("prefix", "want letters, digits, _ and -, 32 at most")
		}
	}
	if s := o.String("path"); o.Has("path") && !f.r.Faulty(o.Path("path")) {
		cfg.Outbound.Path = s
		switch {
		case !outboundPath.MatchString(s):
			o.Errorf("path", "want a path such as %s, of letters, digits, _ and -", DefaultOutboundPath)
		case s == "/mcp" || strings.HasPrefix(s, "/mcp/") || s == "/api" || strings.HasPrefix(s, "/api/") || s == "/healthz":
			o.Errorf("path", "belongs to the servers' own API")
		}
	}
	for i, item := range o.List("workflows") {
		path := strict.Index(o.Path("workflows"), i)
		if w, ok := f.workflow(item, path); ok {
			f.published = append(f.published, published{w, item.At("id"), strict.Child(path, "id")})
		}
	}
}

func (f *file) workflow(n *strict.Node, path string) (Workflow, bool) {
	m := f.r.Map(n, path, "id", "title", "description", "inputs", "input_schema", "output_schema", "url", "headers", "allow_local_endpoint", "timeout")
	if m.Node() == nil {
		return Workflow{}, false
	}
	w := Workflow{ID: m.String("id"), Title: m.String("title"), Description: m.String("description"), Timeout: m.Duration("timeout")}
	if !workflowID.MatchString(w.ID) && !f.r.Faulty(m.Path("id")) {
		m.Errorf("id", "want letters, digits and ._-, 128 at most, a letter or a digit first")
	}
	if len(w.Title) > 200 || strings.ContainsFunc(w.Title, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		m.Errorf("title", "want one line of 200 bytes at most")
	}
	if len(w.Description) > maxDescription {
		m.Errorf("description", "want %d bytes at most", maxDescription)
	}
	for _, key := range []string{"title", "description"} {
		f.noSecret(m.Get(key), m.Path(key))
	}
	if m.Has("inputs") && m.Has("input_schema") {
		m.Errorf("inputs", "cannot stand beside input_schema: both say what a run takes")
	}
	w.Inputs = f.inputs(m)
	w.InputSchema = f.schema(m, "input_schema")
	w.OutputSchema = f.schema(m, "output_schema")
	s := Server{Transport: HTTP}
	f.network(m, &s)
	w.URL, w.Headers, w.AllowLocalEndpoint = s.URL, s.Headers, s.AllowLocalEndpoint
	return w, true
}

// inputs takes a mapping from inputs' names to what they are.
func (f *file) inputs(m strict.Map) []WorkflowInput {
	n := m.Get("inputs")
	if n == nil {
		return nil
	}
	if n.Kind != strict.Mapping {
		m.Errorf("inputs", "want a mapping from names to inputs, got %s", n.Kind)
		return nil
	}
	var out []WorkflowInput
	for _, field := range n.Fields {
		path := strict.Child(m.Path("inputs"), field.Name)
		if !inputName.MatchString(field.Name) {
			f.r.Errorf(&strict.Node{Line: field.Line, Col: field.Col}, path, "want letters, digits and _.- in an input's name, 64 at most")
			continue
		}
		in := WorkflowInput{Name: field.Name, Type: "string"}
		if field.Value != nil && field.Value.Kind != strict.Null { // else a string
			im := f.r.Map(field.Value, path, "type", "description", "required", "default", "enum")
			if im.Node() == nil {
				continue
			}
			if t := f.oneOf(im, "type", "string", "number", "integer", "boolean", "array", "object"); t != "" {
				in.Type = t
			}
			in.Description, in.Required = im.String("description"), im.Bool("required")
			f.noSecret(im.Get("description"), im.Path("description"))
			if d := im.Get("default"); d != nil {
				in.Default = f.json(d, im.Path("default"))
			}
			for i, e := range im.List("enum") {
				in.Enum = append(in.Enum, f.json(e, strict.Index(im.Path("enum"), i)))
			}
		}
		out = append(out, in)
	}
	return out
}

// schema takes a JSON schema that is written as YAML or TOML.
func (f *file) schema(m strict.Map, key string) json.RawMessage {
	n := m.Get(key)
	switch {
	case n == nil:
		return nil
	case n.Kind != strict.Mapping:
		m.Errorf(key, "want a JSON schema as a mapping, got %s", n.Kind)
		return nil
	case n.Get("type") == nil || n.Get("type").Text != "object":
		m.Errorf(key, "the schema needs type: object at its root")
	}
	return f.json(n, m.Path(key))
}

// json is a value in JSON, its mappings in the document's order.
func (f *file) json(n *strict.Node, path string) json.RawMessage {
	f.noSecret(n, path)
	switch n.Kind {
	case strict.Null:
		return json.RawMessage(`null`)
	case strict.Bool:
		return json.RawMessage(strings.ToLower(n.Text))
	case strict.Int, strict.Float:
		if !json.Valid([]byte(n.Text)) {
			f.r.Errorf(n, path, "want a number as JSON writes it")
			return json.RawMessage(`0`)
		}
		return json.RawMessage(n.Text)
	case strict.String:
		b, err := json.Marshal(n.Text)
		if err != nil { // a string always marshals
			return json.RawMessage(`""`)
		}
		return b
	case strict.List:
		out := []byte{'['}
		for i, item := range n.Items {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, f.json(item, strict.Index(path, i))...)
		}
		return append(out, ']')
	case strict.Mapping:
		out := []byte{'{'}
		for i, field := range n.Fields {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(append(out, f.json(&strict.Node{Kind: strict.String, Text: field.Name}, path)...), ':')
			value := field.Value
			if value == nil {
				value = &strict.Node{Kind: strict.Null}
			}
			out = append(out, f.json(value, strict.Child(path, field.Name))...)
		}
		return append(out, '}')
	}
	return json.RawMessage(`null`)
}

// publish lays later files' workflows over earlier ones'.
func publish(files []*file) []Workflow {
	var out []Workflow
	at := map[string]int{}
	owner := map[string]*file{}
	for _, f := range files {
		for _, w := range f.published {
			i, again := at[w.ID]
			switch {
			case !again:
				at[w.ID] = len(out)
				out = append(out, w.Workflow)
			case owner[w.ID] == f:
				f.r.Errorf(w.node, w.path, "workflow %s is published twice: give one of them another id", w.ID)
			default:
				f.r.Warnf(w.node, w.path, "takes the place of workflow %s of an earlier file", w.ID)
				out[i] = w.Workflow
			}
			owner[w.ID] = f
		}
	}
	return out
}
