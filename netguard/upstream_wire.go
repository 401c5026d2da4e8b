package netguard

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answers reports whether msg answers the query: same id, a response, and the
// same single question.
func answers(msg []byte, id uint16, query []byte) (ok, truncated bool) {
	var p, q dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.ID != id || !h.Response {
		return false, false
	}
	got, err := p.AllQuestions()
	if err != nil || len(got) != 1 {
		return false, false
	}
	if _, err := q.Start(query); err != nil {
		return false, false
	}
	want, err := q.Question()
	same := err == nil && got[0].Type == want.Type && got[0].Class == want.Class &&
		strings.EqualFold(got[0].Name.String(), want.Name.String())
	return same, h.Truncated
}

// readAnswer follows the chain from name through the answer section, and takes
// addresses of the wanted type at its end only.
func readAnswer(msg []byte, name string, typ dnsmessage.Type) (Answer, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return Answer{}, errAnswer
	}
	if h.RCode != dnsmessage.RCodeSuccess {
		return Answer{}, errRcode
	}
	if err := p.SkipAllQuestions(); err != nil {
		return Answer{}, errAnswer
	}
	cname := map[string]string{}
	addrs := map[string][]netip.Addr{}
	minTTL := uint32(1<<32 - 1)
	for n := 0; ; n++ {
		rh, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil || n > MaxAnswers+MaxChain+16 {
			return Answer{}, errAnswer
		}
		owner := canonicalOwner(rh.Name)
		if rh.Class != dnsmessage.ClassINET {
			err = p.SkipAnswer()
		} else {
			err = readRecord(&p, rh, owner, typ, cname, addrs)
		}
		if err != nil {
			return Answer{}, errAnswer
		}
		minTTL = min(minTTL, rh.TTL)
	}
	ans := Answer{TTL: time.Duration(minTTL) * time.Second}
	for at := name; ; ans.Chain++ {
		if found := addrs[at]; len(found) > 0 {
			ans.Addrs = found
			return ans, nil
		}
		next, ok := cname[at]
		if !ok {
			ans.TTL = 0
			return ans, nil // NODATA
		}
		if ans.Chain >= MaxChain {
			return Answer{}, ErrChain
		}
		at = next
	}
}

func readRecord(p *dnsmessage.Parser, rh dnsmessage.ResourceHeader, owner string, typ dnsmessage.Type, cname map[string]string, addrs map[string][]netip.Addr) error {
	switch {
	case rh.Type == dnsmessage.TypeCNAME:
		r, err := p.CNAMEResource()
		if err != nil {
			return err
		}
		cname[owner] = canonicalOwner(r.CNAME)
	case rh.Type == typ && typ == dnsmessage.TypeA:
		r, err := p.AResource()
		if err != nil {
			return err
		}
		addrs[owner] = append(addrs[owner], netip.AddrFrom4(r.A))
	case rh.Type == typ && typ == dnsmessage.TypeAAAA:
		r, err := p.AAAAResource()
		if err != nil {
			return err
		}
		addrs[owner] = append(addrs[owner], netip.AddrFrom16(r.AAAA))
	default:
		return p.SkipAnswer()
	}
	return nil
}

func canonicalOwner(n dnsmessage.Name) string {
	return strings.ToLower(strings.TrimSuffix(n.String(), "."))
}
