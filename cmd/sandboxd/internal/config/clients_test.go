package config

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const callers = `
mcp_servers: [{id: files, command: x}, {id: My-Mail, command: x}]
clients:
- {name: engine, token: "{{secrets.engine}}", servers: ["*"]}
- {name: desk, token_sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, servers: [my_mail], tools: ["read_*", "my_mail:send"]}
`

func TestClients(t *testing.T) {
	const token = "a-token-of-some-length"
	cfg, err := parse(t.TempDir(), "c.yaml", callers, env(map[string]string{"SANDBOXD_SECRET_ENGINE": token}))
	if err != nil {
		t.Fatal(err)
	}
	want := []Client{
		{Name: "engine", TokenSHA256: sha256.Sum256([]byte(token)), Servers: []string{"*"}},
		{Name: "desk", TokenSHA256: sha256.Sum256([]byte("test")), Servers: []string{"my_mail"}, Tools: []string{"read_*", "my_mail:send"}},
	}
	if diff := cmp.Diff(want, cfg.Clients); diff != "" {
		t.Error(diff)
	}
	if len(cfg.Secrets) != 1 {
		t.Errorf("a client's token is not among the secrets: %v", cfg.Secrets)
	}
}

func TestClientFaults(t *testing.T) {
	const plain = "plain-token-that-must-not-be-shown"
	_, err := parse(t.TempDir(), "c.yaml", `
mcp_servers: [{id: files, command: x}]
clients:
- {name: a, token: `+plain+`, servers: [files]}
- {name: b, token: "{{secrets.short}}", servers: [files]}
- {name: c, servers: [files]}
- {name: d, token: "{{secrets.long}}", token_sha256: ab, servers: [files]}
- {name: e, token_sha256: ABCDEF, servers: [files]}
- {name: "f g", token: "{{secrets.long}}", servers: [flies]}
- {name: h, token: "{{secrets.long}}", tools: ["["]}
- {name: h, token: "{{secrets.missing}}", servers: [files], scope: all}
`, env(map[string]string{"SANDBOXD_SECRET_SHORT": "short", "SANDBOXD_SECRET_LONG": "long-enough-to-be-a-token"}))
	if err == nil {
		t.Fatal("no fault was found")
	}
	for _, want := range []string{
		"clients[0].token: write it as {{secrets.NAME}}", "clients[1].token: the secret has fewer", "clients[2].token: want one of",
		"clients[3].token: want one of", "clients[4].token_sha256: want the 64", "clients[5].name", `no server "flies" is served: did you mean files?`,
		"clients[6].servers: names the servers", "clients[6].tools", "clients[7].token: secret missing is not set", "scope", "client h is there twice",
		"clients f g and h have the same token",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the faults lack %q", want)
		}
	}
	if strings.Contains(err.Error(), plain) || strings.Contains(err.Error(), "long-enough") || t.Failed() {
		t.Errorf("the faults are:\n%v", err)
	}
}
