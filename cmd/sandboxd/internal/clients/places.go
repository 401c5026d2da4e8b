package clients

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Client is one MCP client: where its file is, and how a server is written
// there.
type Client struct {
	Name string
	// key is the member that holds the servers.
	key string
	// user and project are the file's path below the home folder, by GOOS, and
	// below a project; empty where there is none.
	user    map[string]string
	project string
	// urlKey is the member for a server's url; empty where the client takes
	// none. typed says that each server carries its type, source that it says
	// who put it there.
	urlKey        string
	typed, source bool
}

const anyOS = ""

// known are the clients whose file is written.
func known() []Client {
	appSupport := func(app, file string) map[string]string {
		return map[string]string{
			"darwin": "Library/Application Support/" + app + "/" + file, "windows": "AppData/Roaming/" + app + "/" + file, anyOS: ".config/" + app + "/" + file,
		}
	}
	return []Client{
		{Name: "claude-code", key: "mcpServers", user: map[string]string{anyOS: ".claude.json"}, project: ".mcp.json", urlKey: "url", typed: true},
		{Name: "claude-desktop", key: "mcpServers", user: appSupport("Claude", "claude_desktop_config.json")},
		{Name: "cursor", key: "mcpServers", user: map[string]string{anyOS: ".cursor/mcp.json"}, project: ".cursor/mcp.json", urlKey: "url"},
		{Name: "vscode", key: "servers", user: appSupport("Code", "User/mcp.json"), project: ".vscode/mcp.json", urlKey: "url", typed: true},
		{Name: "windsurf", key: "mcpServers", user: map[string]string{anyOS: ".codeium/windsurf/mcp_config.json"}, urlKey: "serverUrl"},
		{Name: "zed", key: "context_servers", user: map[string]string{anyOS: ".config/zed/settings.json"}, project: ".zed/settings.json", urlKey: "url", source: true},
	}
}

// Names lists the clients whose file is written, in order.
func Names() []string {
	var out []string
	for _, c := range known() {
		out = append(out, c.Name)
	}
	return out
}

// Find returns a client by its name.
func Find(name string) (Client, error) {
	for _, c := range known() {
		if c.Name == name {
			return c, nil
		}
	}
	return Client{}, fmt.Errorf("no client %.64q is known: the clients are %s", name, strings.Join(Names(), ", "))
}

// File is where the client's file is: below home, or below the project where
// that is not empty.
func (c Client) File(goos, home, project string) (string, error) {
	if project != "" {
		if c.project == "" {
			return "", fmt.Errorf("%s has no file of a project: leave --project out", c.Name)
		}
		return filepath.Join(project, filepath.FromSlash(c.project)), nil
	}
	p, ok := c.user[goos]
	if !ok {
		p = c.user[anyOS]
	}
	return filepath.Join(home, filepath.FromSlash(p)), nil
}

// Target is one server as a client's file is to have it: a command, or a url.
type Target struct {
	Name    string
	Command string
	Args    []string
	URL     string
}

// member is an ordered member of a JSON object.
type member struct {
	name  string
	value any
}

// members are what the client wants to know of a server.
func (c Client) members(t Target) ([]member, error) {
	var out []member
	kind := "stdio"
	if t.URL != "" {
		kind = "http"
	}
	if t.URL != "" && c.urlKey == "" {
		return nil, fmt.Errorf("%s takes no url in its file: leave --url out, and it starts sandboxd run", c.Name)
	}
	if c.typed {
		out = append(out, member{"type", kind})
	}
	if c.source {
		out = append(out, member{"source", "custom"})
	}
	if t.URL != "" {
		return append(out, member{c.urlKey, t.URL}), nil
	}
	return append(out, member{"command", t.Command}, member{"args", append([]string{}, t.Args...)}), nil
}
