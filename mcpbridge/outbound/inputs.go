package outbound

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Input is one declared input of a workflow.
type Input struct {
	Name string
	// Type is string, number, integer, boolean, array or object; empty means
	// string.
	Type        string
	Description string
	Required    bool
	// Default and Enum are JSON values, or empty.
	Default json.RawMessage
	Enum    []json.RawMessage
}

// InputTypes are the types that an Input can have.
func InputTypes() []string {
	return []string{"string", "number", "integer", "boolean", "array", "object"}
}

// property is an Input in a schema.
type property struct {
	Type        string            `json:"type"`
	Description string            `json:"description,omitempty"`
	Default     json.RawMessage   `json:"default,omitempty"`
	Enum        []json.RawMessage `json:"enum,omitempty"`
}

// InputSchema is the schema of an object with these inputs and no other.
func InputSchema(inputs []Input) (json.RawMessage, error) {
	s := struct {
		Type       string              `json:"type"`
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required,omitempty"`
		Additional bool                `json:"additionalProperties"`
	}{Type: "object", Properties: map[string]property{}}
	for _, in := range inputs {
		if in.Type == "" {
			in.Type = "string"
		}
		_, twice := s.Properties[in.Name]
		switch {
		case in.Name == "":
			return nil, errors.New("an input has no name")
		case twice:
			return nil, fmt.Errorf("input %q is declared twice", in.Name)
		case !slices.Contains(InputTypes(), in.Type):
			return nil, fmt.Errorf("input %q: unknown type %q", in.Name, in.Type)
		}
		s.Properties[in.Name] = property{in.Type, in.Description, in.Default, in.Enum}
		if in.Required {
			s.Required = append(s.Required, in.Name)
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("the inputs make no schema: %w", err)
	}
	return b, nil
}
