package replica

import (
	"testing"

	"drtmx/internal/placement"
)

// TestHosts: each member has one host, no two the same, the home is member 0, and the
// server's own host is a member wherever the server is.
func TestHosts(t *testing.T) {
	for hosts := 1; hosts <= 20; hosts++ {
		for server := range placement.Server(hosts) {
			for at := range hosts {
				seen := map[int]bool{}
				for k := range Member(min(hosts, MaxMembers)) {
					host := Host(k, server, at, hosts)
					if seen[host] || host < 0 || host >= hosts || MemberAt(host, server, at, hosts) != k {
						t.Fatalf("member %d of server %d at host %d of %d is at host %d, which is that of %d", k, server, at, hosts, host, MemberAt(host, server, at, hosts))
					}
					seen[host] = true
				}
				if Host(0, server, at, hosts) != at || !seen[int(server)] {
					t.Fatalf("server %d at host %d of %d has members at %v", server, at, hosts, seen)
				}
				for host := range hosts {
					if !seen[host] && MemberAt(host, server, at, hosts) != -1 {
						t.Fatalf("host %d of %d is a member of server %d at host %d", host, hosts, server, at)
					}
				}
			}
		}
	}
}
