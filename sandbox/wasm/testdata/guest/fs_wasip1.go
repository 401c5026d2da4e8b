package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// fsCommands runs "op arg…" lines, one for each argument, and prints what came
// of each.
func fsCommands(args []string) error {
	for _, line := range args {
		f := strings.Fields(line)
		out, err := fsCommand(f[0], append(f[1:], "", ""))
		if err != nil {
			fmt.Printf("%s: error: %v\n", line, err)
		} else {
			fmt.Printf("%s: %s\n", line, out)
		}
	}
	return nil
}

func fsCommand(op string, a []string) (string, error) {
	switch op {
	case "read":
		b, err := os.ReadFile(a[0])
		return string(b), err
	case "write":
		return "ok", os.WriteFile(a[0], []byte(a[1]), 0o644)
	case "append":
		f, err := os.OpenFile(a[0], os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return "", err
		}
		defer f.Close()
		_, err = f.WriteString(a[1])
		return "ok", err
	case "fill": // with so many KiB
		n, err := strconv.Atoi(a[1])
		if err != nil {
			return "", err
		}
		return "ok", os.WriteFile(a[0], make([]byte, n<<10), 0o644)
	case "rmall":
		return "ok", os.RemoveAll(a[0])
	case "kept": // what an open file still holds after its name is gone
		f, err := os.Create(a[0])
		if err != nil {
			return "", err
		}
		defer f.Close()
		if _, err := f.WriteString(a[1]); err != nil {
			return "", err
		}
		if err := os.Remove(a[0]); err != nil {
			return "", err
		}
		b := make([]byte, len(a[1]))
		_, err = f.ReadAt(b, 0)
		return string(b), err
	case "ls":
		list, err := os.ReadDir(a[0])
		var names []string
		for _, e := range list {
			n := e.Name()
			if e.IsDir() {
				n += "/"
			}
			names = append(names, n)
		}
		return strings.Join(names, " "), err
	case "stat":
		st, err := os.Stat(a[0])
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d %v", st.Size(), st.Mode().Type()), nil
	case "lstat":
		st, err := os.Lstat(a[0])
		if err != nil {
			return "", err
		}
		return st.Mode().Type().String(), nil
	case "mkdir":
		return "ok", os.Mkdir(a[0], 0o755)
	case "rm":
		return "ok", os.Remove(a[0])
	case "mv":
		return "ok", os.Rename(a[0], a[1])
	case "ln":
		return "ok", os.Link(a[0], a[1])
	case "symlink":
		return "ok", os.Symlink(a[0], a[1])
	case "readlink":
		return os.Readlink(a[0])
	case "truncate":
		return "ok", os.Truncate(a[0], 2)
	case "touch":
		t := time.Unix(1_000_000_000, 0)
		if err := os.Chtimes(a[0], t, t); err != nil {
			return "", err
		}
		st, err := os.Stat(a[0])
		if err != nil {
			return "", err
		}
		return st.ModTime().UTC().Format(time.RFC3339), nil
	case "pread":
		f, err := os.Open(a[0])
		if err != nil {
			return "", err
		}
		defer f.Close()
		b := make([]byte, 3)
		n, err := f.ReadAt(b, 1)
		return string(b[:n]), err
	}
	return "", fmt.Errorf("unknown operation")
}
