package strict

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of a document. Aliases count each time they are used, so that a
// small file cannot become a large tree.
const (
	MaxBytes = 1 << 20
	MaxNodes = 50_000
	MaxDepth = 32
)

// ParseYAML turns one YAML document into a tree. Faults go to r, all of them
// where the syntax allows to go on; it returns nil where there is no tree.
// Refused beyond YAML's own errors: more than one document, a repeated key, a
// key that is not a string, a merge key, a tag other than the core ones, and
// what goes beyond MaxBytes, MaxNodes or MaxDepth.
func ParseYAML(r *Reporter, data []byte) *Node {
	if len(data) > MaxBytes {
		r.Errorf(nil, "", "the document has %d bytes, more than the %d that are read", len(data), MaxBytes)
		return nil
	}
	if !utf8.Valid(data) {
		r.add(lineOfInvalid(data), 1, "", false, "the document is not UTF-8")
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			r.Errorf(nil, "", "the document is empty")
			return nil
		}
		r.syntax(err, data)
		return nil
	}
	var second yaml.Node
	switch err := dec.Decode(&second); {
	case err == nil:
		r.add(second.Line, second.Column, "", false, "a second document begins here: one file holds one document")
		return nil
	case !errors.Is(err, io.EOF):
		r.syntax(err, data)
		return nil
	}
	if len(doc.Content) != 1 {
		r.Errorf(nil, "", "the document is empty")
		return nil
	}
	c := converter{r: r, left: MaxNodes}
	root := c.convert(doc.Content[0], "", 0)
	if c.stopped {
		return nil
	}
	return root
}

func lineOfInvalid(data []byte) int {
	line := 1
	for len(data) > 0 {
		c, size := utf8.DecodeRune(data)
		if c == utf8.RuneError && size == 1 {
			return line
		}
		if c == '\n' {
			line++
		}
		data = data[size:]
	}
	return line
}

var (
	yamlLine = regexp.MustCompile(`^line (\d+): `)
	// The library counts lines from 0 in the errors of its grammar, from 1 in
	// those of its scanner.
	yamlGrammar = regexp.MustCompile(`^did not find expected (<|node content|key|'-' indicator|',' or)`)
)

// syntax reports the library's error at the line that it names.
func (r *Reporter) syntax(err error, data []byte) {
	msg, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line, msg = n, msg[len(m[0]):]
			if yamlGrammar.MatchString(msg) {
				line++
			}
		}
	}
	last := bytes.Count(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) + 1
	r.add(min(line, last), 1, "", false, "not valid YAML: "+cut(msg, 200))
}

type converter struct {
	r       *Reporter
	left    int
	stopped bool
}

// convert returns nil only after it has stopped.
func (c *converter) convert(y *yaml.Node, path string, depth int) *Node {
	if c.stopped {
		return nil
	}
	if c.left--; c.left < 0 {
		return c.stop(y, path, "the document has more than "+strconv.Itoa(MaxNodes)+" values, aliases counted each time")
	}
	// An alias inside its own anchor ends here as well.
	if depth > MaxDepth {
		return c.stop(y, path, "the document is nested more than "+strconv.Itoa(MaxDepth)+" levels deep")
	}
	if y.Kind == yaml.AliasNode {
		n := c.convert(y.Alias, path, depth+1)
		if n == nil {
			return nil
		}
		at := *n // the alias's own place is where a reader looks
		at.Line, at.Col = y.Line, y.Column
		return &at
	}
	n := &Node{Line: y.Line, Col: y.Column}
	switch y.Kind {
	case yaml.MappingNode:
		n.Kind = Mapping
		c.tag(y, path, "!!map")
		c.fields(n, y, path, depth)
	case yaml.SequenceNode:
		n.Kind = List
		c.tag(y, path, "!!seq")
		for i, item := range y.Content {
			n.Items = append(n.Items, c.convert(item, Index(path, i), depth+1))
		}
	default:
		n.Kind, n.Text = c.scalar(y, path), y.Value
	}
	return n
}

func (c *converter) fields(n *Node, y *yaml.Node, path string, depth int) {
	first := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, val := y.Content[i], y.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			if key.ShortTag() == "!!merge" {
				c.r.add(key.Line, key.Column, path, false, "merge keys (<<) are not supported: write the keys out")
			} else {
				c.r.add(key.Line, key.Column, path, false, "a key must be a string: put it in quotes")
			}
			continue
		}
		name := key.Value
		if line, dup := first[name]; dup {
			c.r.add(key.Line, key.Column, path, false, "key "+quote(name)+" was given before, at line "+strconv.Itoa(line))
			continue
		}
		first[name] = key.Line
		v := c.convert(val, Child(path, name), depth+1)
		n.Fields = append(n.Fields, Field{Name: name, Line: key.Line, Col: key.Column, Value: v})
	}
}

func (c *converter) scalar(y *yaml.Node, path string) Kind {
	switch y.ShortTag() {
	case "!!str", "!!timestamp": // a bare date is text here
		return String
	case "!!null":
		return Null
	case "!!bool":
		return Bool
	case "!!int":
		return Int
	case "!!float":
		return Float
	}
	c.r.add(y.Line, y.Column, path, false, "tag "+quote(y.Tag)+" is not supported")
	return String
}

func (c *converter) tag(y *yaml.Node, path, want string) {
	if y.ShortTag() != want {
		c.r.add(y.Line, y.Column, path, false, "tag "+quote(y.Tag)+" is not supported")
	}
}

func (c *converter) stop(y *yaml.Node, path, msg string) *Node {
	c.stopped = true
	c.r.add(y.Line, y.Column, path, false, msg)
	return nil
}
