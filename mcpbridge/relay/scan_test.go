package relay

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPeek(t *testing.T) {
	for _, tt := range []struct {
		line                  string
		kind                  Kind
		id, method, par, res  string
		duplicate, syntaxFail bool
	}{
		{line: `{"jsonrpc":"2.0","id":1,"method":"ping"}`, kind: Request, id: `1`, method: "ping"},
		{line: ` { "result" : {"a":[1,{"id":7}]} , "jsonrpc":"2.0" , "id" : "x\"y" } ` + "\r", kind: Response, id: `"x\"y"`, res: `{"a":[1,{"id":7}]}`},
		{line: `{"jsonrpc":"2.0","method":"n","params":[1]}`, kind: Notification, method: "n", par: `[1]`},
		{line: `{"jsonrpc":"2.0","error":{},"id":null}`, kind: Response, id: `null`},
		{line: `{"\u006asonrpc":"2.0","\u0069d":12345678901234567890,"method":"\u0070ing"}`, kind: Request, id: `12345678901234567890`, method: "ping"},
		{line: `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`, kind: Request, id: `2`, method: "m", duplicate: true},
		{line: `{"jsonrpc":"2.0","id":1,"method":"ping","Method":"m"}`, kind: Request, id: `1`, method: "ping", duplicate: true},
		{line: `{"jsonrpc":"2.0","id":1,"result":{},"PARAM\u017F":{}}`, kind: Response, id: `1`, res: `{}`, duplicate: true},
		{line: `{"jsonrpc":"2.0","id":1,"method":"m","methods":1}`, kind: Request, id: `1`, method: "m"},
		{line: `[{"jsonrpc":"2.0","id":1,"method":"m"},{"jsonrpc":"2.0","id":2,"result":{}}]`, kind: Batch},
		{line: `{"level":"info","method":"GET","msg":"a log line that is JSON"}`},
		{line: `{"jsonrpc":"2.0","method":null,"id":1}`, id: ""},
		{line: `{"jsonrpc":"1.0","method":"m","id":1}`},
		{line: `[]`},
		{line: `[1]`},
		{line: `"text"`},
		{line: `12`},
		{line: `{}`},
		{line: `null`},
		{line: ``, syntaxFail: true},
		{line: `   `, syntaxFail: true},
		{line: `Server running on stdio`, syntaxFail: true},
		{line: `[INFO] hello`, syntaxFail: true},
		{line: `{"jsonrpc":"2.0"`, syntaxFail: true},
		{line: `{"a":1}}`, syntaxFail: true},
		{line: `{"a":1,}`, syntaxFail: true},
		{line: "{\"a\":\"\x01\"}", syntaxFail: true},
		{line: `{"a":"\x"}`, syntaxFail: true},
		{line: `{"a":01}`, syntaxFail: true},
		{line: `{"a":[1,2}`, syntaxFail: true},
		{line: `{"a":{"b":1]}`, syntaxFail: true},
		{line: `{"a" 1}`, syntaxFail: true},
		{line: `{"a":"\ud800"}`},
		{line: "{\"a\":\"\xff\xfe\"}"}, // not for the relay to judge
	} {
		m, err := Peek([]byte(tt.line))
		if (err != nil) != tt.syntaxFail || err != nil && !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: error %v", tt.line, err)
			continue
		}
		if m.Kind != tt.kind || m.Duplicate != tt.duplicate {
			t.Errorf("%q: kind %v duplicate %v", tt.line, m.Kind, m.Duplicate)
		}
		if m.Kind == Stray || m.Kind == Batch {
			continue
		}
		got := []string{string(m.ID.Of([]byte(tt.line))), m.Method, string(m.Params.Of([]byte(tt.line))), string(m.Result.Of([]byte(tt.line)))}
		if diff := cmp.Diff([]string{tt.id, tt.method, tt.par, tt.res}, got); diff != "" {
			t.Errorf("%q: %s", tt.line, diff)
		}
	}
}

func TestPeekDeep(t *testing.T) {
	const n = 1 << 20
	line := `{"jsonrpc":"2.0","id":1,"result":` + strings.Repeat(`[{"a":`, n/2) + "1" + strings.Repeat(`}]`, n/2) + `}`
	m, err := Peek([]byte(line))
	if err != nil || m.Kind != Response || m.Depth != n+1 {
		t.Errorf("kind %v depth %d, %v", m.Kind, m.Depth, err)
	}
	if _, err := Peek([]byte(strings.Repeat("[", n))); !errors.Is(err, ErrSyntax) {
		t.Errorf("open brackets: %v", err)
	}
}

func TestIDKey(t *testing.T) {
	same := [][]string{{`1`, `1.0`, `1e0`, `10e-1`}, {`"1"`, `"\u0031"`}, {`9007199254740993`}, {`9007199254740992`}, {`-0`, `0`}, {`1.5`}, {`""`}}
	seen := map[string]int{}
	for i, group := range same {
		for _, id := range group {
			k, ok := IDKey([]byte(id))
			if j, twice := seen[k]; !ok || twice && j != i {
				t.Errorf("%s: key %q, ok %v, also of group %d", id, k, ok, j)
			}
			seen[k] = i
		}
	}
	if len(seen) != len(same) {
		t.Errorf("%d keys for %d ids", len(seen), len(same))
	}
	for _, id := range []string{``, `null`, `{}`, `[]`, `true`} {
		if _, ok := IDKey([]byte(id)); ok {
			t.Errorf("%q is no id", id)
		}
	}
}

func TestSplice(t *testing.T) {
	b := []byte(`{"a":1,"b":2}`)
	a, _ := Member(b, "a")
	c, _ := Member(b, "b")
	got, err := Splice(b, Edit{a, []byte(`"one"`)}, Edit{c, nil})
	if err != nil || string(got) != `{"a":"one","b":}` {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := Splice(b, Edit{c, nil}, Edit{a, nil}); err == nil {
		t.Error("edits out of order were made")
	}
}

// FuzzPeek holds the scanner against encoding/json, which must agree on what
// is JSON and on every member's value.
func FuzzPeek(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"id":"a","result":{"x":[1.5e3,-0,"\u00e9\\"]},"jsonrpc":"2.0"}`,
		`[{"jsonrpc":"2.0","id":1,"method":"m"}]`, `{"a":"12345678901234567\""}`, "{\"a\":\"\x1f\"}", `[[[[]]],{}]`, ` null `, `{"id":1,"id":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Peek(b)
		valid := json.Valid(b)
		if (err == nil) != valid && m.Depth <= 10_000 && bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) < 10_000 {
			t.Fatalf("error %v, but json.Valid says %v", err, valid)
		}
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(b, &want) != nil || want == nil {
			return
		}
		got := map[string]json.RawMessage{}
		if err := Members(b, func(k string, v Span) bool {
			// encoding/json replaces invalid UTF-8 in names.
			got[strings.ToValidUTF8(k, "\uFFFD")] = v.Of(b)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		for k, v := range got {
			if w, ok := want[k]; ok && !bytes.Equal(bytes.TrimSpace(w), v) {
				t.Fatalf("member %q: %q, want %q", k, v, w)
			}
		}
		if sp, ok := Member(b, "id"); ok {
			IDKey(sp.Of(b))
		}
		for _, e := range Elements(b) {
			if !json.Valid(e) {
				t.Fatalf("element %q", e)
			}
		}
	})
}

// FuzzSkeleton checks that a skeleton keeps the envelope's scalars.
func FuzzSkeleton(f *testing.F) {
	f.Add([]byte(`{"result":{"a":[1,2,{"id":9}]},"jsonrpc":"2.0","id":3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Peek(b)
		if err != nil || m.Kind == Batch || len(b) > 1000 {
			return
		}
		var sk skeleton
		for i := range b { // any split gives the same
			sk.feed(b[i : i+1])
		}
		s := sk.bytes()
		if len(b) == 0 || bytes.TrimLeft(b, " \t\r\n")[0] != '{' {
			return
		}
		sm, err := Peek(s)
		if err != nil {
			t.Fatalf("skeleton %q of %q: %v", s, b, err)
		}
		if sm.Kind != m.Kind {
			t.Fatalf("skeleton %q of %q: kind %v, want %v", s, b, sm.Kind, m.Kind)
		}
		id := m.ID.Of(b)
		if len(id) > 0 && id[0] != '{' && id[0] != '[' && !bytes.Equal(sm.ID.Of(s), id) {
			t.Fatalf("id %q, want %q", sm.ID.Of(s), id)
		}
	})
}

func BenchmarkPeek(b *testing.B) {
	big := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("lorem ipsum dolor ", 10<<20/18) + `"}]}}`)
	rows := []byte(`{"jsonrpc":"2.0","id":1,"result":{"rows":[` + strings.Repeat(`{"a":1,"b":"xyz","c":[true,null]},`, 10<<20/35) + `1]}}`)
	for name, line := range map[string][]byte{"small": []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`), "text10MiB": big, "rows10MiB": rows} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Peek(line); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
