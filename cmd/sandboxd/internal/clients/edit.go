package clients

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// ErrOccupied marks a name under which the file has a server that sandboxd did
// not write.
var ErrOccupied = errors.New("another server has this name")

// Edit puts targets into a client's file and takes others out, and leaves all
// else byte for byte: comments, the order of keys, indentation. An empty file
// is one without servers. A server of the same name that sandboxd did not
// write is replaced or removed only with force, else it is an ErrOccupied.
// Doing it again changes nothing.
func (c Client) Edit(data []byte, put []Target, remove []string, force bool) ([]byte, error) {
	bom := []byte("\ufeff")
	body, hadBOM := bytes.CutPrefix(data, bom)
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}\n")
	}
	root, err := parseHu(body)
	if err != nil {
		return nil, err
	}
	obj, ok := root.Value.(*hujson.Object)
	if !ok {
		return nil, errors.New("the file is no JSON object: it is not this client's")
	}
	e := editor{unit: indentOf(obj), eol: "\n"}
	if bytes.Contains(body, []byte("\r\n")) {
		e.eol = "\r\n"
	}
	servers, err := e.servers(obj, c.key, len(put) > 0)
	if err != nil {
		return nil, err
	}
	if servers == nil {
		return data, nil
	}
	for _, name := range remove {
		if err := e.remove(servers, name, force); err != nil {
			return nil, err
		}
	}
	for _, t := range put {
		ms, err := c.members(t)
		if err != nil {
			return nil, err
		}
		if err := e.put(servers, t, ms, force); err != nil {
			return nil, err
		}
	}
	if !e.changed {
		return data, nil
	}
	out := root.Pack()
	if hadBOM {
		out = append(bom, out...)
	}
	return out, nil
}

type editor struct {
	unit, eol string
	changed   bool
}

// indentOf is how the file indents its first level.
func indentOf(obj *hujson.Object) string {
	if len(obj.Members) > 0 {
		before := string(obj.Members[0].Name.BeforeExtra)
		if i := strings.LastIndexByte(before, '\n'); i >= 0 {
			if indent := before[i+1:]; indent != "" && strings.Trim(indent, " \t") == "" {
				return indent
			}
		}
	}
	return "  "
}

// servers finds the object that holds the servers, or adds it.
func (e *editor) servers(root *hujson.Object, key string, add bool) (*hujson.Object, error) {
	i, err := find(root, key)
	if err != nil {
		return nil, err
	}
	if i < 0 {
		if !add {
			return nil, nil
		}
		obj := &hujson.Object{}
		e.append(root, key, hujson.Value{Value: obj}, 1)
		return obj, nil
	}
	obj, ok := root.Members[i].Value.Value.(*hujson.Object)
	if !ok {
		return nil, fmt.Errorf("%s is no JSON object: repair the file first", key)
	}
	return obj, nil
}

// find returns a member's index, or -1. A name given twice is refused: nobody
// knows which of them the client reads.
func find(obj *hujson.Object, name string) (int, error) {
	at := -1
	for i := range obj.Members {
		if text(obj.Members[i].Name.Value) != name {
			continue
		}
		if at >= 0 {
			return 0, fmt.Errorf("%s is there twice: repair the file first", shown(name))
		}
		at = i
	}
	return at, nil
}

// append adds a member at the end, with the comments that follow the last one
// left behind that.
func (e *editor) append(obj *hujson.Object, name string, v hujson.Value, depth int) {
	kept := strings.TrimRight(string(obj.AfterExtra), " \t\r\n")
	v.BeforeExtra = hujson.Extra(" ")
	m := hujson.ObjectMember{Name: hujson.Value{Value: hujson.String(name)}, Value: v}
	m.Name.BeforeExtra = hujson.Extra(kept + e.eol + strings.Repeat(e.unit, depth))
	if n := len(obj.Members); n > 0 && obj.Members[n-1].Value.AfterExtra != nil {
		m.Value.AfterExtra = hujson.Extra{} // a comma at the end stays one
	}
	obj.Members = append(obj.Members, m)
	obj.AfterExtra = hujson.Extra(e.eol + strings.Repeat(e.unit, depth-1))
	e.changed = true
}

func (e *editor) put(servers *hujson.Object, t Target, ms []member, force bool) error {
	v, err := e.value(ms)
	if err != nil {
		return err
	}
	i, err := find(servers, t.Name)
	if err != nil {
		return err
	}
	if i < 0 {
		e.append(servers, t.Name, v, 2)
		return nil
	}
	old := &servers.Members[i].Value
	if sameJSON(*old, v) {
		return nil
	}
	if !force && !written(*old) {
		return fmt.Errorf("%w: %s: replace it with --force", ErrOccupied, shown(t.Name))
	}
	old.Value = v.Value
	e.changed = true
	return nil
}

func (e *editor) remove(servers *hujson.Object, name string, force bool) error {
	i, err := find(servers, name)
	if err != nil || i < 0 {
		return err
	}
	if !force && !written(servers.Members[i].Value) {
		return fmt.Errorf("%w: %s: remove it with --force", ErrOccupied, shown(name))
	}
	// What stands before it may be a comment on the one before.
	kept := strings.TrimRight(string(servers.Members[i].Name.BeforeExtra), " \t\r\n")
	comma := servers.Members[i].Value.AfterExtra != nil
	servers.Members = slices.Delete(servers.Members, i, i+1)
	if i < len(servers.Members) {
		next := &servers.Members[i].Name
		next.BeforeExtra = hujson.Extra(kept + string(next.BeforeExtra))
	} else {
		servers.AfterExtra = hujson.Extra(kept + string(servers.AfterExtra))
		if i > 0 && comma && servers.Members[i-1].Value.AfterExtra == nil {
			servers.Members[i-1].Value.AfterExtra = hujson.Extra{}
		}
		if i > 0 && !comma {
			last := &servers.Members[i-1].Value
			servers.AfterExtra = hujson.Extra(string(last.AfterExtra) + string(servers.AfterExtra))
			last.AfterExtra = nil
		}
	}
	e.changed = true
	return nil
}

// value is an entry in the file's own indentation.
func (e *editor) value(ms []member) (hujson.Value, error) {
	pad := strings.Repeat(e.unit, 2)
	var b strings.Builder
	b.WriteString("{")
	for i, m := range ms {
		var enc bytes.Buffer
		j := json.NewEncoder(&enc)
		j.SetEscapeHTML(false)
		j.SetIndent(pad+e.unit, e.unit)
		if err := j.Encode(m.value); err != nil {
			return hujson.Value{}, err
		}
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n%s%s%q: %s", pad, e.unit, m.name, strings.TrimSpace(enc.String()))
	}
	b.WriteString("\n" + pad + "}")
	return hujson.Parse([]byte(strings.ReplaceAll(b.String(), "\n", e.eol)))
}

func sameJSON(a, b hujson.Value) bool {
	a, b = a.Clone(), b.Clone()
	a.Minimize()
	b.Minimize()
	return bytes.Equal(a.Pack(), b.Pack())
}

// written knows an entry of sandboxd's: one that starts sandboxd, or the url
// of an endpoint on this host.
func written(v hujson.Value) bool {
	var e struct {
		Command        string `json:"command"`
		URL, ServerURL string
	}
	v = v.Clone()
	v.Standardize()
	if json.Unmarshal(v.Pack(), &e) != nil {
		return false
	}
	program := e.Command[strings.LastIndexAny(e.Command, `/\`)+1:]
	url := or(e.URL, e.ServerURL)
	return strings.HasPrefix(program, "sandboxd") || e.Command == "" && strings.HasPrefix(url, "http://127.0.0.1:") && strings.Contains(url, "/mcp")
}
