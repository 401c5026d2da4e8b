package images

import (
	"slices"
	"strings"
)

// launcher is one program that fetches a package and runs it at once.
type launcher struct {
	name string   // the program
	subs []string // its sub-command's names; nil if it needs none
	// flags without a value that change nothing here
	plain []string
	// flags with a value that change nothing here
	valued []string
	// flags that name the package, so that the first word is the command
	pkg []string
	// untilDashes: the program's own flags may come after the package, up to
	// a --, as npm exec has it
	untilDashes bool
}

var launchers = []launcher{
	{name: "npx", plain: npmPlain, valued: npmValued, pkg: []string{"-p", "--package"}},
	{name: "npm", subs: []string{"exec", "x"}, plain: npmPlain, valued: npmValued, pkg: []string{"--package"}, untilDashes: true},
	{name: "pnpm", subs: []string{"dlx"}, plain: []string{"-s", "--silent"}, pkg: []string{"--package"}},
	{name: "pnpx", plain: []string{"-s", "--silent"}, pkg: []string{"--package"}},
	{name: "bunx", plain: []string{"--bun", "--silent", "--verbose"}, pkg: []string{"-p", "--package"}},
	{name: "bun", subs: []string{"x"}, plain: []string{"--bun", "--silent", "--verbose"}, pkg: []string{"-p", "--package"}},
	{name: "yarn", subs: []string{"dlx"}, plain: []string{"-q", "--quiet"}, pkg: []string{"-p", "--package"}},
}

var (
	npmPlain = []string{
		"-y", "--yes", "-q", "--quiet", "-s", "--silent", "--prefer-offline", "--prefer-online",
		"--ignore-existing", "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--verbose", "-d",
	}
	npmValued = []string{"--loglevel"}
)

// refusedFlag says what to do about a flag whose meaning would be lost.
func refusedFlag(name string) string {
	switch name {
	case "--registry", "--userconfig", "--cache":
		return "set it in your npm configuration, which is used for the build"
	case "-c", "--call", "--shell-mode":
		return "a shell line is not a server: give its package and arguments"
	case "--no-install", "--no", "--offline":
		return "leave it out: after the first build nothing is fetched anyway"
	case "-n", "--node-options", "--node-arg":
		return "set NODE_OPTIONS with --env"
	}
	return "leave it out, or give npm:PACKAGE@VERSION instead"
}

// match reports whether the words start this launcher, and what follows.
func (l launcher) match(program string, rest []string) ([]string, bool) {
	if program != l.name {
		return nil, false
	}
	if l.subs == nil {
		return rest, true
	}
	if len(rest) > 0 && slices.Contains(l.subs, rest[0]) {
		return rest[1:], true
	}
	return nil, false
}

// parse reads the launcher's flags, the package, and the server's arguments.
func (l launcher) parse(words []string) (parsed, error) {
	var pkg string
	var positional []string
	for len(words) > 0 {
		w := words[0]
		if w == "--" {
			positional = append(positional, words[1:]...)
			break
		}
		if !strings.HasPrefix(w, "-") || w == "-" {
			if !l.untilDashes {
				positional = words
				break
			}
			positional, words = append(positional, w), words[1:]
			continue
		}
		n, value, err := l.flag(words)
		if err != nil {
			return parsed{}, err
		}
		if value != "" {
			if pkg != "" {
				return parsed{}, fail(ErrReference, l.name+": more than one --package", "give the one package that holds the server")
			}
			pkg = value
		}
		words = words[n:]
	}
	if len(positional) == 0 {
		return parsed{}, fail(ErrReference, l.name+": no command to run", commandForms)
	}
	if pkg == "" {
		return npmCommand(positional[0], "", positional[1:])
	}
	return npmCommand(pkg, positional[0], positional[1:])
}

// flag reads one flag at the front of words: how many words it takes, and its
// value if it names the package.
func (l launcher) flag(words []string) (n int, pkg string, err error) {
	name, value, hasValue := strings.Cut(words[0], "=")
	switch {
	case slices.Contains(l.plain, name):
		if hasValue && value != "true" {
			return 0, "", fail(ErrReference, l.name+": the flag "+quoted(words[0])+" is not understood", "leave it out")
		}
		return 1, "", nil
	case slices.Contains(l.valued, name), slices.Contains(l.pkg, name):
		n = 1
		if !hasValue {
			if len(words) < 2 {
				return 0, "", fail(ErrReference, l.name+": the flag "+name+" needs a value", commandForms)
			}
			value, n = words[1], 2
		}
		if !slices.Contains(l.pkg, name) {
			return n, "", nil
		}
		if value == "" {
			return 0, "", fail(ErrReference, l.name+": the flag "+name+" needs a value", commandForms)
		}
		return n, value, nil
	}
	return 0, "", fail(ErrReference, l.name+": the flag "+quoted(name)+" is not taken", refusedFlag(name))
}

// npmCommand reads the package as npm's own command line takes it, which knows
// folders and addresses too: those are refused by their name.
func npmCommand(spec, bin string, args []string) (parsed, error) {
	r, err := parseNPM(spec, bin)
	return parsed{ref: r.String(), Command: Command{Args: args}}, err
}
