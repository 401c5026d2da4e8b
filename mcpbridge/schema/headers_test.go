package schema

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHeaders(t *testing.T) {
	got, err := Headers([]byte(`{"properties":{"a":{"type":"string","x-mcp-header":"Region"},"b":{"type":"object","properties":{"c":{"type":"integer","x-mcp-header":"N-1"}}},"d":{"type":"number"},"e":true}}`))
	want := []Header{{Path: []string{"a"}, Name: "Region"}, {Path: []string{"b", "c"}, Name: "N-1"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, fine := range []string{``, `true`, `{}`, `{"properties":7}`, `{"properties":{}}`, `{"properties":{"a":7,"b":null,"":[]}}`, `{"x-mcp-header":"root"}`} {
		if got, err := Headers([]byte(fine)); err != nil || len(got) != 0 {
			t.Errorf("%s: %v, %v", fine, got, err)
		}
	}
	property := func(s string) string { return `{"properties":{"a":{"type":"string","x-mcp-header":` + s + `}}}` }
	var many []string
	for i := range maxHeaders + 1 {
		many = append(many, fmt.Sprintf(`"p%d":{"type":"string","x-mcp-header":"h%d"}`, i, i))
	}
	for _, bad := range []string{
		property(`""`), property(`7`), property(`null`), property(`"a b"`), property(`"a:b"`), property(`"a\r\nX: y"`), property(`"é"`),
		property(`"` + strings.Repeat("x", 200) + `"`), `{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, `{"properties":{"a":{"x-mcp-header":"A"}}}`,
		`{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`,
		`{"properties":{` + strings.Join(many, ",") + `}}`,
	} {
		if got, err := Headers([]byte(bad)); err == nil {
			t.Errorf("%.100s: %v", bad, got)
		}
	}
	deep := strings.Repeat(`{"properties":{"a":`, 100) + `{"type":"string","x-mcp-header":"A"}` + strings.Repeat(`}}`, 100)
	if got, err := Headers([]byte(deep)); err != nil || len(got) != 0 {
		t.Errorf("a deep schema: %v, %v", got, err)
	}
}
