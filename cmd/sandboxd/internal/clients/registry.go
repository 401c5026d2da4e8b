package clients

import (
	"strings"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// registry takes a server.json of the official registry's: its first package
// of a kind that is known becomes a command, else its first remote a url.
func (d *document) registry(r *strict.Reporter, root *strict.Node) {
	full := scalar(root.Get("name"))
	name := full[strings.LastIndexByte(full, '/')+1:]
	if name == "" {
		r.Errorf(root, "name", "the server has no name")
		return
	}
	var packages, remotes []*strict.Node
	if n := root.Get("packages"); n != nil {
		packages = n.Items
	}
	if n := root.Get("remotes"); n != nil {
		remotes = n.Items
	}
	for _, p := range packages {
		kind := or(scalar(p.Get("registryType")), scalar(p.Get("registry_type")))
		id, version := scalar(p.Get("identifier")), scalar(p.Get("version"))
		e := entry{name: name}
		if t := scalar(p.Get("transport").Get("type")); t != "" && t != "stdio" {
			d.remarks = append(d.remarks, "the package "+shown(id)+" was passed over: it speaks "+shown(t)+", not stdio")
			continue
		}
		switch kind {
		case "npm":
			e.command, e.args = "npx", []string{"-y", at(id, "@", version)}
		case "pypi":
			e.command, e.args = "uvx", []string{at(id, "==", version)}
		case "oci":
			if !strings.ContainsAny(id[strings.LastIndexByte(id, '/')+1:], ":@") {
				id = at(id, ":", version)
			}
			e.command, e.args = "oci:"+id, nil
		default:
			d.remarks = append(d.remarks, "the package "+shown(id)+" was passed over: packages of type "+shown(kind)+" are not run")
			continue
		}
		e.args = append(e.args, e.arguments(p.Get("packageArguments"))...)
		if n := p.Get("runtimeArguments"); n != nil && len(n.Items) > 0 {
			e.remarks = append(e.remarks, "runtimeArguments were dropped: they are for the program that starts the package")
		}
		e.env = e.inputs(p.Get("environmentVariables"))
		d.entries = append(d.entries, e)
		return
	}
	for _, m := range remotes {
		e := entry{name: name, transport: or(scalar(m.Get("type")), scalar(m.Get("transport_type"))), url: scalar(m.Get("url"))}
		e.headers = e.inputs(m.Get("headers"))
		d.entries = append(d.entries, e)
		return
	}
	r.Errorf(root, "", "server %.64q has no package and no remote that can be used", full)
}

func at(id, sep, version string) string {
	if version == "" || version == "latest" && sep == "==" {
		return id
	}
	return id + sep + version
}

// arguments takes those that have a value, and those that must have one.
func (e *entry) arguments(n *strict.Node) (out []string) {
	if n == nil {
		return nil
	}
	for _, a := range n.Items {
		value := or(scalar(a.Get("value")), scalar(a.Get("default")))
		name := scalar(a.Get("name"))
		if value == "" && scalar(a.Get("isRequired")) == "true" && scalar(a.Get("format")) != "boolean" {
			e.remarks = append(e.remarks, "the argument "+shown(or(name, scalar(a.Get("valueHint"))))+" needs a value: write it into args")
			continue
		}
		switch {
		case scalar(a.Get("type")) == "named" && value != "":
			out = append(out, name, value)
		case scalar(a.Get("type")) == "named" && scalar(a.Get("isRequired")) == "true":
			out = append(out, name)
		case value != "":
			out = append(out, value)
		}
	}
	return out
}

// inputs takes variables or headers: a secret, or one that must be given and
// has no value, becomes a question.
func (e *entry) inputs(n *strict.Node) (out []pair) {
	if n == nil {
		return nil
	}
	for _, v := range n.Items {
		name, value := scalar(v.Get("name")), or(scalar(v.Get("value")), scalar(v.Get("default")))
		required := scalar(v.Get("isRequired")) == "true"
		switch {
		case name == "":
		case scalar(v.Get("isSecret")) == "true" && (required || value != ""), value == "" && required:
			out = append(out, pair{name, "${input:" + name + "}"})
		case value != "":
			out = append(out, pair{name, value})
		default:
			e.remarks = append(e.remarks, "the optional variable "+shown(name)+" was left out")
		}
	}
	return out
}
