package images

import (
	"path/filepath"
	"slices"
	"strings"
)

const commandForms = "give npx -y PACKAGE ARGS…, uvx PACKAGE, go run MODULE@VERSION, docker run -i --rm IMAGE, a reference such as npm:PACKAGE@VERSION, or FILE.wasm ARGS…"

// Command is what a command line in a client's configuration asks for.
type Command struct {
	Ref Ref
	// Args follow the image's own command.
	Args []string
	// Env are variables that the command line sets or passes on, in its order.
	Env []CommandVar
	// EnvFiles hold more of them, as NAME=VALUE lines; they come before Env.
	EnvFiles []string
	// Mounts are host paths to show to the server.
	Mounts []CommandMount
	// NoNetwork: the command line asks for no network at all.
	NoNetwork bool
	// Entrypoint takes the place of the image's command; empty leaves it.
	Entrypoint []string
	// Dir takes the place of the image's working folder; empty leaves it.
	Dir string
}

// CommandVar is one variable of a command line.
type CommandVar struct {
	Name, Value string
	// Pass says that the value is the caller's own variable of that name.
	Pass bool
}

// CommandMount is one mount of a command line. Source may be relative.
type CommandMount struct {
	Source, Target string
	ReadWrite      bool
}

// parsed is a Command whose reference is still in its written form.
type parsed struct {
	Command
	ref string
}

// ParseCommand reads the command line that a person already has in a client's
// configuration and says what it runs. It knows npx, npm exec, pnpm dlx, bunx,
// yarn dlx, node FILE, uvx, uv tool run, uv run in a project, pipx run,
// python -m, go run, docker run and podman run, each also behind env and
// cmd /c; a reference; and a .wasm file. Anything else, and any flag whose
// meaning it could not keep, is refused with the reason. It starts nothing;
// for node FILE it looks for the folder of the package. Errors match
// ErrReference.
func ParseCommand(argv []string) (Command, error) {
	p, err := parseCommand(argv, 0)
	if err != nil {
		return Command{}, err
	}
	p.Ref, err = ParseRef(p.ref)
	return p.Command, err
}

// FromCommand is ParseCommand for whoever needs no more than the reference and
// the arguments for it.
func FromCommand(argv []string) (Ref, []string, error) {
	c, err := ParseCommand(argv)
	return c.Ref, c.Args, err
}

// maxWrappers bounds how often env and cmd /c stand in front of each other.
const maxWrappers = 4

func parseCommand(argv []string, depth int) (parsed, error) {
	if len(argv) == 0 || argv[0] == "" {
		return parsed{}, fail(ErrReference, "no command given", commandForms)
	}
	first, rest := argv[0], argv[1:]
	if kind, _, ok := strings.Cut(first, ":"); ok && slices.Contains([]string{"npm", "pypi", "go", "oci", "wasm", "dir"}, kind) {
		return parsed{ref: first, Command: Command{Args: rest}}, nil
	}
	if strings.HasSuffix(first, ".wasm") {
		r, err := wasmRef(first)
		return parsed{ref: r.String(), Command: Command{Args: rest}}, err
	}
	name := programName(first)
	for _, l := range launchers {
		if after, ok := l.match(name, rest); ok {
			return l.parse(after)
		}
	}
	switch name {
	case "node", "nodejs":
		return nodeCommand(rest)
	case "uvx":
		return uvxCommand("uvx", rest)
	case "uv":
		return uvCommand(rest)
	case "pipx":
		return pipxCommand(rest)
	case "go":
		return goCommand(rest)
	case "docker", "podman", "nerdctl":
		return containerCommand(name, rest)
	case "env", "cmd":
		if depth >= maxWrappers {
			return parsed{}, fail(ErrReference, "too many commands in front of each other", commandForms)
		}
		return wrappedCommand(name, rest, depth)
	}
	if isPython(name) {
		return pythonCommand(name, rest)
	}
	return parsed{}, fail(ErrReference, "cannot sandbox the command "+quoted(name)+reason(name), commandForms)
}

// programName is a program's name without its folder and what Windows adds.
func programName(path string) string {
	name := filepath.Base(strings.ReplaceAll(path, "\\", "/"))
	for _, ext := range []string{".exe", ".cmd", ".ps1"} {
		name = strings.TrimSuffix(name, ext)
	}
	return name
}

// reason says why a well-known command is not taken.
func reason(name string) string {
	switch name {
	case "bun", "deno", "tsx", "ts-node":
		return ": a script of this host is not an image; node FILE is taken where a package.json is above the file"
	case "sh", "bash", "zsh", "powershell", "sudo":
		return ": put the server's own command here, and its variables behind --env"
	case "java", "dotnet", "ruby", "cargo", "deno run":
		return ": only npm, Python, Go and container images are built; wrap it in a container image"
	case "sandboxd":
		return ": it is sandboxed already"
	}
	return ""
}

// wrappedCommand takes env NAME=VALUE… COMMAND and cmd /c COMMAND.
func wrappedCommand(name string, words []string, depth int) (parsed, error) {
	var vars []CommandVar
	if name == "cmd" {
		if len(words) == 0 || !strings.EqualFold(words[0], "/c") {
			return parsed{}, fail(ErrReference, "cmd without /c starts no server", commandForms)
		}
		words = words[1:]
	} else {
		for len(words) > 0 {
			k, v, ok := strings.Cut(words[0], "=")
			if !ok {
				break
			}
			if !envNameRE.MatchString(k) {
				return parsed{}, fail(ErrReference, "env: "+quoted(k)+" is no variable's name", "write NAME=VALUE")
			}
			vars, words = append(vars, CommandVar{Name: k, Value: v}), words[1:]
		}
		if len(words) > 0 && strings.HasPrefix(words[0], "-") {
			return parsed{}, fail(ErrReference, "env: the flag "+quoted(words[0])+" is not taken", "a server sees nothing but what it is given anyway")
		}
	}
	p, err := parseCommand(words, depth+1)
	p.Env = append(vars, p.Env...)
	return p, err
}
