package policies

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies/strict"
)

// registryNames are those that a placeholder can stand for.
var registryNames = []string{"npm", "pypi", "go"}

// RegistryNames lists the package registries that an allow rule can name as
// {{registry.NAME}}.
func RegistryNames() []string { return slices.Clone(registryNames) }

var placeholder = regexp.MustCompile(`^\{\{ ?registry\.([a-z0-9_-]{1,32}) ?\}\}$`)

// item is one allow rule of a document.
type item struct {
	rule     netguard.Rule
	node     *strict.Node
	path     string
	registry string // of a rule whose host is a placeholder
}

// registryOf reads a rule's placeholder. The registry's own configuration says
// the port and the protocol, so the rule may not.
func registryOf(r *strict.Reporter, m strict.Map, host string) string {
	if !strings.Contains(host, "{{") {
		return ""
	}
	found := placeholder.FindStringSubmatch(host)
	switch {
	case found == nil:
		m.Errorf("host", "the one placeholder that can stand here, as the whole host, is {{registry.NAME}}; the names are %s", strings.Join(registryNames, ", "))
		return ""
	case !slices.Contains(registryNames, found[1]):
		hint := "the names are " + strings.Join(registryNames, ", ")
		if s := strict.Nearest(found[1], registryNames); s != "" {
			hint = "did you mean " + s + "?"
		}
		m.Errorf("host", "no registry %q is known: %s", found[1], hint)
		return ""
	}
	for _, key := range []string{"ports", "protocol", "shared_suffix", "cidr"} {
		if m.Has(key) {
			r.Errorf(m.Node().At(key), m.Path(key), "cannot stand beside {{registry.%s}}: the client's configuration says where and how it is reached", found[1])
		}
	}
	return found[1]
}

// expand puts the registries' hosts in the place of the placeholders. from
// tells for each rule which item of the document it came from.
func (d *decoder) expand(items []item) (rules []netguard.Rule, from []int) {
	var names []string
	for _, it := range items {
		if it.registry != "" && !slices.Contains(names, it.registry) {
			names = append(names, it.registry)
		}
	}
	var values map[string][]string
	if len(names) > 0 && d.loader.Registries != nil {
		values = d.loader.Registries(names)
	}
	for i, it := range items {
		expanded := []netguard.Rule{it.rule}
		if it.registry != "" {
			expanded = d.registryRules(it, values[it.registry])
		}
		for _, rule := range expanded {
			rules, from = append(rules, rule), append(from, i)
		}
	}
	return rules, from
}

// registryRules makes the rules of one placeholder. Options are checked even
// where nothing is known of the registry: a document must not become faulty
// on another machine.
func (d *decoder) registryRules(it item, origins []string) []netguard.Rule {
	probe := it.rule
	probe.Host = "registry.example.com"
	for _, f := range faultsOf(probe) {
		d.r.Errorf(it.node.At(f.Path), join(it.path, f.Path), "%s", f.Msg)
	}
	var rules []netguard.Rule
	host := it.node.At("host")
	for _, origin := range origins {
		rule, err := originRule(origin)
		if err != nil {
			d.r.Warnf(host, join(it.path, "host"), "{{registry.%s}} has a value that stays closed: %v", it.registry, err)
			continue
		}
		rule.ResolveWithin, rule.ECH = it.rule.ResolveWithin, it.rule.ECH
		if !slices.ContainsFunc(rules, func(r netguard.Rule) bool { return r.Host == rule.Host && r.Ports[0] == rule.Ports[0] }) {
			rules = append(rules, rule)
		}
	}
	if len(origins) == 0 {
		d.r.Warnf(host, join(it.path, "host"),
			"{{registry.%s}} opens nothing: no client here names a registry. Install and configure the client, or list its urls under registries.%s in the operator's settings",
			it.registry, it.registry)
	}
	return rules
}

// originRule makes the rule for one origin such as https://HOST:8443. Its
// errors show no more of the value than host and port.
func originRule(origin string) (netguard.Rule, error) {
	u, err := url.Parse(origin)
	// A star would be a wildcard of the policy's.
	if err != nil || u.User != nil || u.Hostname() == "" || strings.Contains(u.Host, "*") || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return netguard.Rule{}, errors.New("it is not an origin such as https://HOST:PORT")
	}
	rule := netguard.Rule{Host: strings.ToLower(u.Hostname()), Protocol: netguard.ProtocolTLS, Ports: []netguard.Port{"443"}}
	switch u.Scheme {
	case "https":
	case "http":
		rule.Protocol, rule.Ports[0] = netguard.ProtocolHTTP, "80"
	default:
		return netguard.Rule{}, fmt.Errorf("its scheme %.16q is neither https nor http", u.Scheme)
	}
	if p := u.Port(); p != "" {
		rule.Ports[0] = netguard.Port(p)
	}
	if faults := faultsOf(rule); len(faults) > 0 {
		return netguard.Rule{}, fmt.Errorf("%.200q: %s", net.JoinHostPort(rule.Host, string(rule.Ports[0])), faults[0].Msg)
	}
	return rule, nil
}

// faultsOf compiles one rule alone; paths start at the rule.
func faultsOf(rule netguard.Rule) []netguard.FieldError {
	_, err := netguard.Compile(netguard.Config{Mode: netguard.ModeAllowlist, Allow: []netguard.Rule{rule}})
	var all *netguard.ConfigError
	if !errors.As(err, &all) {
		return nil
	}
	out := slices.Clone(all.Fields)
	for i := range out {
		out[i].Path = strings.TrimPrefix(strings.TrimPrefix(out[i].Path, "allow[0]"), ".")
	}
	return out
}

// RegistryEgress opens the given origins of one registry, each as
// https://HOST[:PORT] or http://HOST[:PORT], and nothing else. An origin on
// this host or at a literal private address opens as exactly that endpoint.
func RegistryEgress(origins []string) (netguard.Config, error) {
	cfg := netguard.Config{Mode: netguard.ModeAllowlist}
	for _, origin := range origins {
		u, reason := netguard.ParseURL(origin)
		if reason == "" && (u.Target.Addr.IsValid() || u.Target.Name == "localhost") {
			cfg.AllowLocalEndpoint = append(cfg.AllowLocalEndpoint, u.Target.String())
			continue
		}
		rule, err := originRule(origin)
		if err != nil {
			return netguard.Config{}, fmt.Errorf("the registry's address cannot be opened: %w", err)
		}
		if !slices.ContainsFunc(cfg.Allow, func(r netguard.Rule) bool { return r.Host == rule.Host && r.Ports[0] == rule.Ports[0] }) {
			cfg.Allow = append(cfg.Allow, rule)
		}
	}
	return cfg, nil
}
