package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCompile(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"a":`, 40) + `{}` + strings.Repeat(`}}`, 40)
	for _, tt := range []struct {
		name, schema, refusal string // refusal empty: admitted
		b                     Bounds
	}{
		{name: "plain", schema: `{"type":"object"}`},
		{name: "draft-07", schema: `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"a":{"type":"string"}},"properties":{"a":{"$ref":"#/definitions/a"}}}`},
		{name: "draft-07 without #", schema: `{"$schema":"https://json-schema.org/draft-07/schema","type":"object"}`},
		{name: "2020-12", schema: `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","$defs":{"a b":{}},"properties":{"a":{"$ref":"#/$defs/a%20b"}}}`},
		{name: "no root type", schema: `{"properties":{}}`},
		{name: "no root type, strict", schema: `{"properties":{}}`, b: Bounds{RequireRootType: true}, refusal: "no type"},
		{name: "recursive data", schema: `{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#"}}}}`},
		{name: "a property named $ref", schema: `{"type":"object","properties":{"$ref":{"type":"string"},"$id":{"type":"string"}}}`},
		{name: "ref into properties", schema: `{"type":"object","properties":{"a":{"type":"string"},"b":{"$ref":"#/properties/a"}}}`},
		{name: "absent", schema: ``, refusal: "not JSON"},
		{name: "null", schema: `null`, refusal: "no JSON object"},
		{name: "boolean", schema: `true`, refusal: "no JSON object"},
		{name: "other type", schema: `{"type":"string"}`, refusal: "root's type"},
		{name: "types", schema: `{"type":["object","null"]}`, refusal: "root's type"},
		{name: "old draft", schema: `{"$schema":"http://json-schema.org/draft-04/schema#","type":"object"}`, refusal: "$schema"},
		{name: "network ref", schema: `{"type":"object","properties":{"a":{"$ref":"http://169.254.169.254/x"}}}`, refusal: "leads out"},
		{name: "file ref", schema: `{"type":"object","$ref":"file:///etc/passwd"}`, refusal: "leads out"},
		{name: "relative ref", schema: `{"type":"object","$ref":"other.json"}`, refusal: "leads out"},
		{name: "dangling ref", schema: `{"type":"object","$ref":"#/$defs/none"}`, refusal: "no subschema"},
		{name: "dynamic ref", schema: `{"type":"object","$dynamicRef":"#x"}`, refusal: "$dynamicRef"},
		{name: "ref to itself", schema: `{"type":"object","$ref":"#"}`, refusal: "refers to itself"},
		{name: "ref in a ring", schema: `{"type":"object","allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"not":{"$ref":"#/$defs/a"}}}}`, refusal: "refers to itself"},
		{name: "bad pattern", schema: `{"type":"object","properties":{"a":{"pattern":"("}}}`, refusal: "pattern"},
		{name: "bad keyword", schema: `{"type":"object","required":"a"}`, refusal: "schema not usable"},
		{name: "no schema in properties", schema: `{"type":"object","properties":{"a":1}}`, refusal: "is no schema"},
		{name: "null in anyOf", schema: `{"type":"object","anyOf":[null]}`, refusal: "is no schema"},
		{name: "deep", schema: `{"type":"object","properties":{"a":` + deep + `}}`, refusal: "levels"},
		{name: "large", schema: `{"type":"object","description":"` + strings.Repeat("x", 300<<10) + `"}`, refusal: "bytes"},
		{name: "many nodes", schema: `{"type":"object","anyOf":[` + strings.Repeat(`{},`, 25_000) + `{}]}`, refusal: "too many"},
		{name: "long id", schema: `{"type":"object","$id":"http://x/` + strings.Repeat("x", 300) + `"}`, refusal: "$id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Compile([]byte(tt.schema), tt.b)
			switch {
			case tt.refusal == "" && err != nil:
				t.Error(err)
			case tt.refusal == "":
			case err == nil || !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), tt.refusal):
				t.Errorf("%v, want a refusal with %q", err, tt.refusal)
			case s != nil:
				t.Error("a refused schema was returned")
			}
		})
	}
}

func TestValidatePaths(t *testing.T) {
	s, err := Compile([]byte(`{"type":"object","required":["a"],"additionalProperties":false,
		"properties":{"a":{"type":"string","maxLength":3},"b":{"type":"object","properties":{"c/d":{"type":"integer"}}},
		"list":{"type":"array","items":{"$ref":"#/$defs/row"}},"any":{"anyOf":[{"type":"string"},{"type":"integer"}]}},
		"$defs":{"row":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]}}}`), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ value, path, reason string }{
		{`{"a":"abc","b":{"c/d":9007199254740993},"list":[{"x":1.5}],"any":1}`, "", ""},
		{`{"a":"abcd"}`, "/a", "maxLength"},
		{`{"a":7}`, "/a", "string"},
		{`{}`, "", `"a"`},
		{`{"a":"x","zz":1}`, "", `"zz"`},
		{`{"a":"x","b":{"c/d":"no"}}`, "/b/c~1d", "integer"},
		{`{"a":"x","list":[{"x":1},{"x":"no"}]}`, "/list/*/x", "number"},
		{`{"a":"x","list":[{}]}`, "/list/*", `"x"`},
		{`{"a":"x","any":[]}`, "/any", "anyOf"},
		{`[]`, "", "array"},
		{`{"a":"x"} `, "", ""},
		{`{"a":"x"}}`, "", "not JSON"},
		{strings.Repeat(`{"b":`, 200) + `{}` + strings.Repeat(`}`, 200), "", "levels"},
	} {
		err := s.Validate([]byte(tt.value))
		if tt.reason == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.value, err)
			}
			continue
		}
		var inv *InvalidError
		if !errors.As(err, &inv) || inv.Path != tt.path || !strings.Contains(inv.Reason, tt.reason) {
			t.Errorf("%.80s: %+v, want %q at %q", tt.value, err, tt.reason, tt.path)
		}
	}
}

// Each of these schemas is small and would keep a plain validator busy for
// ever, or exhaust its stack.
func TestValidateIsBounded(t *testing.T) {
	doubling := `{"type":"object","$ref":"#/$defs/d0","$defs":{`
	for i := range 40 {
		doubling += fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	doubling += `"d40":{}}}`
	if _, err := Compile([]byte(doubling), Bounds{}); !errors.Is(err, ErrSchema) {
		t.Errorf("doubling references: %v", err)
	}

	below := `{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"properties":{"a":{"$ref":"#/properties/a"}}}]}}}`
	s, err := Compile([]byte(below), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	value := strings.Repeat(`{"a":`, 60) + `1` + strings.Repeat(`}`, 60)
	if err := s.Validate([]byte(value)); err == nil || !strings.Contains(err.Error(), "too much work") {
		t.Errorf("references that double at each level of the value: %v", err)
	}
	loop, err := Compile([]byte(`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.Validate([]byte(`{"a":1}`)); err == nil || !strings.Contains(err.Error(), "too much work") {
		t.Errorf("a loop below a property: %v", err)
	}
	wide, err := Compile([]byte(`{"type":"object","properties":{"a":{"anyOf":[`+strings.Repeat(`{"type":"string"},`, 9000)+`{"type":"null"}]}}}`), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	if err := wide.Validate([]byte(`{"a":[` + strings.Repeat(`1,`, 200_000) + `1]}`)); err == nil || !strings.Contains(err.Error(), "too much work") {
		t.Errorf("many alternatives of a large value: %v", err)
	}
	// Milliseconds on a quiet machine; without the bounds, years.
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

// What is large and honest passes.
func TestValidateLargeValues(t *testing.T) {
	s, err := Compile([]byte(`{"type":"object","properties":{"rows":{"type":"array","items":{"type":"integer"}},"text":{"type":"string"}}}`), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{
		"rows": `{"rows":[` + strings.Repeat(`123,`, 1<<18) + `1]}`, "text": `{"text":"` + strings.Repeat("x", 4<<20) + `"}`,
	} {
		if err := s.Validate([]byte(v)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzSchema(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string","pattern":"^a"}}}`), []byte(`{"a":"b"}`))
	f.Add([]byte(`{"type":"object","allOf":[{"if":{"properties":{"a":{"const":1}}},"then":{"required":["b"]}}],"unevaluatedProperties":false}`), []byte(`{"a":1}`))
	f.Add([]byte(`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"integer"}],"dependencies":{"a":["b"],"c":{"minProperties":3}}}`), []byte(`{"c":[1]}`))
	f.Fuzz(func(t *testing.T, raw, value []byte) {
		s, err := Compile(raw, Bounds{Bytes: 4096, Nodes: 500})
		if err != nil {
			if !errors.Is(err, ErrSchema) {
				t.Fatal(err)
			}
			return
		}
		if err := s.Validate(value); err != nil {
			var inv *InvalidError
			if !errors.As(err, &inv) {
				t.Fatal(err)
			}
		}
	})
}
