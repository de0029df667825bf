package cluster

import (
	"errors"
	"strings"
	"testing"

	"drtmx/internal/member"
	"drtmx/internal/member/membertest"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
)

// copiesOf are the hosts that have a copy of a server in sync, its own data included.
func copiesOf(s *member.State, server placement.Server) (hosts []int) {
	at, _ := s.Map.Server(server)
	for k := replica.Member(0); k < replica.MaxMembers; k++ {
		if s.Map.Set(server).Members.Has(k) {
			hosts = append(hosts, replica.Host(k, server, at.Host, s.Map.Size))
		}
	}
	return hosts
}

// TestCopiesAreInOtherZones: the copy of each server is in another zone than its home. If
// all hosts there are lost it is in the same one, and goes back when one is there again.
// Clients write meanwhile, and nothing is lost.
func TestCopiesAreInOtherZones(t *testing.T) {
	t.Parallel()
	soon(t)
	zones := []string{"a", "a", "b", "b"}
	h := startHostsSet(t, 4, 2, 0, func(o *JoinOptions) { o.Return, o.Zone = true, zones[o.Index] })
	w := h.write(2)
	spread := func(what string, apart bool, servers ...int) {
		t.Helper()
		eventually(t, what, func() bool {
			s, err := h.stores[0].State(h.ctx)
			if err != nil {
				return false
			}
			for _, server := range servers {
				at := copiesOf(s, placement.Server(server))
				if len(at) != 2 || (zones[at[0]] != zones[at[1]]) != apart {
					return false
				}
			}
			return true
		})
	}
	spread("every server has its copy in the other zone", true, 0, 1, 2, 3)
	w.goOn()
	h.inSync(2)
	h.gone(2)
	w.goOn()
	spread("the copies of a lost host are made at the other one of its zone", true, 0, 1, 2, 3)
	h.gone(3)
	w.goOn()
	spread("with one zone left the copies are there", false, 0, 1, 2, 3)
	back := h.startAgain(2)
	back()
	w.goOn()
	spread("copies go to the zone that is there again", true, 0, 1)
	t.Logf("%d pairs acknowledged", w.end())
}

// TestBadZones: names of zones that no store holds, and too few of them.
func TestBadZones(t *testing.T) {
	for _, c := range []struct {
		zones []string
		zone  string
		want  string
	}{
		{zones: []string{"a"}, want: "1 zones, want one for each of the 2 hosts, or none"},
		{zone: "a,b", want: "want printable characters and no comma"},
		{zone: "a\n", want: "want printable characters and no comma"},
		{zone: strings.Repeat("z", member.MaxZoneBytes+1), want: "has 65 bytes, want at most 64"},
	} {
		o := durableOptions(t, membertest.NewLocal().Open(), t.TempDir(), 2, 0, "127.0.0.1:1")
		o.Zones, o.Zone = c.zones, c.zone
		if err := o.check(); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
