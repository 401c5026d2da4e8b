package images

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// nodeOptions are flags of node that it takes from NODE_OPTIONS as well.
var nodeOptions = []string{"--no-warnings", "--no-deprecation", "--enable-source-maps", "--trace-warnings", "--trace-deprecation", "--use-system-ca"}

// nodeCommand takes node FILE: the folder of the package that the file belongs
// to is what is sealed.
func nodeCommand(words []string) (parsed, error) {
	var p parsed
	var options []string
	f := flagSet{
		program: "node", plain: nodeOptions, valued: []string{"--max-old-space-size", "--env-file"},
		take: func(name, value string) error {
			switch name {
			case "--env-file":
				p.EnvFiles = append(p.EnvFiles, value)
			case "--max-old-space-size":
				options = append(options, name+"="+value)
			default:
				options = append(options, name)
			}
			return nil
		},
		refuse: func(name string) (string, string) {
			switch name {
			case "-e", "--eval", "-p", "--print":
				return "a line of code is no server", "give its package"
			case "-r", "--require", "--import", "--loader", "--experimental-loader":
				return "it loads further code", "let the server's own entry load it"
			case "--inspect", "--inspect-brk":
				return "it opens a port", "leave it out"
			}
			return "", "leave it out, or give the flag in NODE_OPTIONS with --env"
		},
	}
	rest, err := f.parse(words)
	if err != nil {
		return parsed{}, err
	}
	if len(rest) == 0 || rest[0] == "-" {
		return parsed{}, fail(ErrReference, "node: no file to run", commandForms)
	}
	if len(options) > 0 {
		p.Env = append(p.Env, CommandVar{Name: "NODE_OPTIONS", Value: strings.Join(options, " ")})
	}
	p.ref, err = scriptRef(rest[0], "package.json")
	p.Args = rest[1:]
	return p, err
}

// scriptRef names a file of a project on this host, by the nearest folder
// above it that holds one of the marks.
func scriptRef(file string, marks ...string) (string, error) {
	abs, err := filepath.Abs(file)
	if err != nil || strings.ContainsAny(abs, "#\x00\n") {
		return "", fail(ErrReference, "the file "+quoted(file)+" cannot be named", "rename it")
	}
	if info, err := os.Stat(abs); err != nil {
		return "", fail(ErrReference, "there is no file "+quoted(file)+" here", "check the path")
	} else if info.IsDir() {
		return dirRef(abs, "")
	}
	for dir := filepath.Dir(abs); ; dir = filepath.Dir(dir) {
		if slices.ContainsFunc(marks, func(m string) bool { _, err := os.Stat(filepath.Join(dir, m)); return err == nil }) {
			rel, err := filepath.Rel(dir, abs)
			if err != nil {
				return "", err
			}
			return dirRef(dir, filepath.ToSlash(rel))
		}
		if dir == filepath.Dir(dir) {
			return "", fail(ErrReference, "no "+strings.Join(marks, " or ")+" lies above "+quoted(file), "a script alone says not what it needs: give its project a "+marks[0])
		}
	}
}

func dirRef(dir, file string) (string, error) {
	if !filepath.IsAbs(dir) || strings.ContainsAny(dir, "#\x00\n") {
		return "", fail(ErrReference, "the folder "+quoted(dir)+" cannot be named", "write an absolute path without #")
	}
	if file == "" {
		return "dir:" + dir, nil
	}
	return "dir:" + dir + "#" + file, nil
}

// goCommand takes go run MODULE@VERSION.
func goCommand(words []string) (parsed, error) {
	if len(words) == 0 || words[0] != "run" {
		return parsed{}, fail(ErrReference, "go: only go run MODULE@VERSION names a server", commandForms)
	}
	f := flagSet{
		program: "go run", ignored: []string{"-v", "-x", "-n"},
		take: func(string, string) error { return nil },
		refuse: func(string) (string, string) {
			return "", "leave it out, or build a container image with it"
		},
	}
	rest, err := f.parse(words[1:])
	if err != nil {
		return parsed{}, err
	}
	if len(rest) == 0 {
		return parsed{}, fail(ErrReference, "go run: no module is named", commandForms)
	}
	module, version, ok := strings.Cut(rest[0], "@")
	switch {
	case strings.HasPrefix(module, ".") || strings.HasPrefix(module, "/") || strings.HasSuffix(module, ".go"):
		return parsed{}, fail(ErrReference, "go run: "+quoted(rest[0])+" is a folder of this host", "give MODULE@VERSION, or build it for GOOS=wasip1 and give the .wasm file")
	case !ok || version == "":
		return parsed{}, fail(ErrReference, "go run: "+quoted(rest[0])+" has no version", "write MODULE@VERSION, such as @latest")
	case strings.ContainsAny(module+version, " \t\n#@\x00"):
		return parsed{}, fail(ErrReference, "go run: "+quoted(rest[0])+" is no module", "write MODULE@VERSION")
	}
	return parsed{ref: "go:" + module + "@" + version, Command: Command{Args: rest[1:]}}, nil
}
