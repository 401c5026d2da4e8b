package images

import (
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// PEP 508's name, with extras, and one version.
	pythonSpec   = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(\[[A-Za-z0-9._, -]*\])?(?:(?:==|@)([A-Za-z0-9][A-Za-z0-9._+!-]*))?$`)
	pythonModule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	pythonName   = regexp.MustCompile(`^(python|py|pypy)[0-9.]*$`)
)

func isPython(name string) bool { return pythonName.MatchString(name) }

// pypiRef turns what uvx takes into a reference.
func pypiRef(program, spec, bin string) (string, error) {
	m := pythonSpec.FindStringSubmatch(spec)
	if m == nil {
		return "", fail(ErrReference, program+": "+quoted(spec)+" is no package of an index", "write PACKAGE or PACKAGE==VERSION: no folders, URLs, git addresses or ranges")
	}
	ref := "pypi:" + m[1] + strings.ReplaceAll(m[2], " ", "")
	if m[3] != "" {
		ref += "@" + m[3]
	}
	if bin != "" {
		if !binRE.MatchString(bin) {
			return "", fail(ErrReference, program+": "+quoted(bin)+" is no command's name", commandForms)
		}
		ref += "#" + bin
	}
	return ref, nil
}

func refusedPythonFlag(name string) (why, next string) {
	switch name {
	case "--index-url", "--default-index", "--index", "--extra-index-url", "--find-links", "--pip-args":
		return "an index belongs to your own configuration", "set it for pip or uv: that is used for the build"
	case "-p", "--python":
		return "the image brings its own Python", "leave it out"
	case "--with", "--with-requirements", "--with-editable":
		return "one package is one image", "leave it out where the package works without"
	case "--offline":
		return "", "leave it out: after the first build nothing is fetched anyway"
	}
	return "", ""
}

// uvxCommand takes uvx [--from SPEC] COMMAND.
func uvxCommand(program string, words []string) (parsed, error) {
	from := ""
	f := flagSet{
		program: program,
		ignored: []string{
			"-q", "--quiet", "-v", "--verbose", "--refresh", "--isolated", "-n", "--no-cache", "--no-progress", "--native-tls", "--no-config", "-U", "--upgrade",
		},
		ignoredValued: []string{"--refresh-package", "--color", "--cache-dir", "--link-mode"},
		valued:        []string{"--from"},
		take:          func(_, value string) error { from = value; return nil },
		refuse:        refusedPythonFlag,
	}
	rest, err := f.parse(words)
	if err != nil {
		return parsed{}, err
	}
	return pythonPackage(program, from, rest)
}

func pythonPackage(program, from string, rest []string) (p parsed, err error) {
	if len(rest) == 0 {
		return p, fail(ErrReference, program+": no command to run", commandForms)
	}
	if from == "" {
		p.ref, err = pypiRef(program, rest[0], "")
	} else {
		p.ref, err = pypiRef(program, from, rest[0])
	}
	p.Args = rest[1:]
	return p, err
}

// uvCommand takes uv tool run and uv run in a project's folder.
func uvCommand(words []string) (parsed, error) {
	dir := ""
	take := func(_, value string) error { dir = value; return nil }
	f := flagSet{
		program: "uv", ignored: []string{"-q", "--quiet", "-v", "--verbose", "-n", "--no-cache", "--no-progress", "--native-tls"},
		valued: []string{"--directory", "--project"}, take: take, refuse: refusedPythonFlag,
	}
	rest, err := f.parse(words)
	if err != nil {
		return parsed{}, err
	}
	if len(rest) > 1 && rest[0] == "tool" && rest[1] == "run" && dir == "" {
		return uvxCommand("uv tool run", rest[2:])
	}
	if len(rest) == 0 || rest[0] != "run" {
		return parsed{}, fail(ErrReference, "uv: only uv tool run PACKAGE and uv run in a project name a server", commandForms)
	}
	f.program, f.ignored = "uv run", append(f.ignored, "--frozen", "--locked", "--no-sync", "--no-dev", "--active")
	if rest, err = f.parse(rest[1:]); err != nil {
		return parsed{}, err
	}
	switch {
	case len(rest) == 0:
		return parsed{}, fail(ErrReference, "uv run: no command to run", commandForms)
	case dir == "" && filepath.Ext(rest[0]) == ".py":
		ref, err := scriptRef(rest[0], "pyproject.toml", "requirements.txt")
		return parsed{ref: ref, Command: Command{Args: rest[1:]}}, err
	case dir == "":
		return parsed{}, fail(ErrReference, "uv run: the project is the client's working folder, which a server does not see", "add --directory FOLDER")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return parsed{}, err
	}
	ref, err := dirRef(abs, rest[0])
	return parsed{ref: ref, Command: Command{Args: rest[1:]}}, err
}

// pipxCommand takes pipx run [--spec SPEC] COMMAND.
func pipxCommand(words []string) (parsed, error) {
	if len(words) == 0 || words[0] != "run" {
		return parsed{}, fail(ErrReference, "pipx: only pipx run PACKAGE names a server", commandForms)
	}
	spec := ""
	f := flagSet{
		program: "pipx run", ignored: []string{"--no-cache", "-q", "--quiet", "-v", "--verbose", "--pypackages"},
		valued: []string{"--spec"},
		take:   func(_, value string) error { spec = value; return nil },
		refuse: refusedPythonFlag,
	}
	rest, err := f.parse(words[1:])
	if err != nil {
		return parsed{}, err
	}
	return pythonPackage("pipx run", spec, rest)
}

// pythonCommand takes python -m MODULE, where the package has the module's
// name, and python FILE in a project.
func pythonCommand(program string, words []string) (parsed, error) {
	for len(words) > 0 && (words[0] == "-u" || words[0] == "-B" || words[0] == "-I" || words[0] == "-E" || words[0] == "-s") {
		words = words[1:]
	}
	switch {
	case len(words) == 0:
		return parsed{}, fail(ErrReference, program+": no module to run", commandForms)
	case words[0] == "-m" && len(words) > 1:
		if !pythonModule.MatchString(words[1]) {
			return parsed{}, fail(ErrReference, program+": the module "+quoted(words[1])+" does not say which package holds it", "write pypi:PACKAGE#COMMAND")
		}
		ref, err := pypiRef(program, strings.ReplaceAll(strings.Trim(words[1], "_"), "_", "-"), "")
		return parsed{ref: ref, Command: Command{Args: words[2:]}}, err
	case strings.HasPrefix(words[0], "-"):
		return parsed{}, fail(ErrReference, program+": the flag "+quoted(words[0])+" is not taken", "give python -m MODULE, or pypi:PACKAGE#COMMAND")
	}
	ref, err := scriptRef(words[0], "pyproject.toml", "requirements.txt")
	return parsed{ref: ref, Command: Command{Args: words[1:]}}, err
}
