package config

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const outboundYAML = `
outbound:
  prefix: wf_
  path: /flows
  workflows:
    - id: deploy
      title: Deploy
      description: Brings it out
      url: https://engine.example.com/runs
      headers: {Authorization: "Bearer {{secrets.engine}}"}
      timeout: 1h
      inputs:
        version: {description: which, required: true}
        size: {type: integer, default: 2, enum: [1, 2]}
        plain:
      output_schema: {type: object, required: [at], properties: {"a b": {type: [string, "null"], maxLength: 5}}}
    - id: local
      url: http://127.0.0.1:9000/x
      allow_local_endpoint: true
      input_schema: {type: object, additionalProperties: true}
`

const outboundTOML = `
[outbound]
prefix = "wf_"
path = "/flows"
[[outbound.workflows]]
id = "deploy"
title = "Deploy"
description = "Brings it out"
url = "https://engine.example.com/runs"
timeout = "1h"
headers = { Authorization = "Bearer {{secrets.engine}}" }
inputs = { version = { description = "which", required = true }, size = { type = "integer", default = 2, enum = [1, 2] }, plain = {} }
output_schema = { type = "object", required = ["at"], properties = { "a b" = { type = ["string", "null"], maxLength = 5 } } }
[[outbound.workflows]]
id = "local"
url = "http://127.0.0.1:9000/x"
allow_local_endpoint = true
input_schema = { type = "object", additionalProperties = true }
`

func TestOutbound(t *testing.T) {
	want := Outbound{Prefix: "wf_", Path: "/flows", Workflows: []Workflow{
		{
			ID: "deploy", Title: "Deploy", Description: "Brings it out", URL: "https://engine.example.com/runs", Timeout: time.Hour,
			Headers: []Var{{"Authorization", NewSecret("Bearer hunter2")}},
			Inputs: []WorkflowInput{
				{Name: "version", Type: "string", Description: "which", Required: true},
				{Name: "size", Type: "integer", Default: []byte(`2`), Enum: []json.RawMessage{[]byte(`1`), []byte(`2`)}},
				{Name: "plain", Type: "string"},
			},
			OutputSchema: []byte(`{"type":"object","required":["at"],"properties":{"a b":{"type":["string","null"],"maxLength":5}}}`),
		},
		{ID: "local", URL: "http://127.0.0.1:9000/x", AllowLocalEndpoint: true, InputSchema: []byte(`{"type":"object","additionalProperties":true}`)},
	}}
	for name, text := range map[string]string{"c.yaml": outboundYAML, "c.toml": outboundTOML} {
		cfg, err := parse(t.TempDir(), name, text, env(map[string]string{"SANDBOXD_SECRET_ENGINE": "hunter2"}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, cfg.Outbound, reveal); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if s := cfg.Outbound.Workflows[1].Server(); s.LocalEndpoint() != "127.0.0.1:9000" {
			t.Errorf("%s: local endpoint %s", name, s.LocalEndpoint())
		}
	}
}

func TestOutboundFaults(t *testing.T) {
	flow := func(rest string) string {
		return "outbound: {workflows: [{id: a, url: \"https://x.example/\", " + rest + "}]}"
	}
	for text, want := range map[string]string{
		"outbound: {publish: []}":                                       `unknown key "publish"`,
		"outbound: {prefix: \"a b\"}":                                   "letters, digits",
		"outbound: {path: /mcp/x}":                                      "the servers' own",
		"outbound: {path: /a/../b}":                                     "want a path",
		"outbound: {workflows: all}":                                    "want a list",
		"outbound: {workflows: [{url: \"https://x.example/\"}]}":        "workflows[0].id",
		"outbound: {workflows: [{id: a}]}":                              "url: is missing",
		"outbound: {workflows: [{id: a, url: \"http://x.example/\"}]}":  "plaintext",
		"outbound: {workflows: [{id: a, url: \"http://127.0.0.1/\"}]}":  "plaintext",
		"outbound: {workflows: [{id: a, url: \"https://127.0.0.1/\"}]}": "allow_local_endpoint",
		flow("inputs: {b: {type: text}}"):                               "want string, number",
		flow("inputs: {b: {typ: string}}"):                              "did you mean type",
		flow("inputs: {\"b c\": {}}"):                                   "an input's name",
		flow("inputs: {}, input_schema: {type: object}"):                "cannot stand beside",
		flow("input_schema: {type: array}"):                             "type: object",
		flow("output_schema: []"):                                       "want a JSON schema",
		flow("input_schema: {type: object, title: \"{{secrets.x}}\"}"):  "secrets are put into",
		flow("input_schema: {type: object, minimum: 0x10}"):             "as JSON writes it",
		flow("timeout: 0s"):                                             "duration",
		flow("command: npx"):                                            `unknown key "command"`,
		flow("title: \"a\\nb\""):                                        "one line",
		flow("headers: {Host: x}"):                                      "set by the connection",
		"outbound: {workflows: [{id: a, url: \"https://x.example/\"}, {id: a, url: \"https://y.example/\"}]}": "published twice",
	} {
		_, err := parse(t.TempDir(), "c.yaml", text, env(nil))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestALaterFilesWorkflowTakesTheEarliersPlace(t *testing.T) {
	doc := func(name, text string) document { return document{name: name, dir: t.TempDir(), data: []byte(text)} }
	cfg, err := read(env(nil), []document{
		doc("a.yaml", "outbound: {prefix: a_, workflows: [{id: a, url: \"https://x.example/\"}, {id: b, url: \"https://x.example/\"}]}"),
		doc("b.yaml", "outbound: {workflows: [{id: a, url: \"https://y.example/\"}]}"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if o := cfg.Outbound; o.Prefix != "a_" || len(o.Workflows) != 2 || o.Workflows[0].URL != "https://y.example/" || len(cfg.Warnings) != 1 {
		t.Errorf("%+v, %v", o, cfg.Warnings)
	}
}
