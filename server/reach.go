package server

import (
	"context"
	"fmt"
	"slices"

	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/tables"
)

// reach connects to the other servers that have a share, and returns all
// parties. If exactly one partition is at another server, it is the last agent.
func (t *task) reach(ctx context.Context) (parties []twophase.Party, agent twophase.Party, err error) {
	elsewhere := 0
	parties = make([]twophase.Party, 0, len(t.msg.Parts)) // the machine keeps it
	for i := range t.msg.Parts {
		part := t.msg.Parts[i].Partition
		server, ok := t.driver.parts.placement.Primary(part)
		if !ok {
			return nil, agent, fmt.Errorf("%w: partition %d of %d", errLink, part, t.driver.parts.placement.Partitions())
		}
		p := twophase.Party{Partition: part, Incarnation: t.driver.parts.incarnation}
		if server != t.driver.parts.self {
			l := t.link(server)
			if l == nil {
				if l, err = t.connect(ctx, server); err != nil {
					err = &tables.Error{Err: exec.ErrUnavailable, Partition: int(part), Server: t.driver.parts.addrs[server], Cause: err}
					return nil, agent, err
				}
			}
			if l.replaced {
				return nil, agent, t.driver.parts.restarted(part)
			}
			p.Incarnation = l.incarnation
			if part := &t.msg.Parts[i]; part.Memory == 0 { // a later epoch must not take it for its own
				part.Memory = l.epoch
			}
			agent = p
			elsewhere++
		}
		if known := t.msg.Parts[i].Incarnation; known != 0 && known != p.Incarnation {
			return nil, agent, t.driver.parts.restarted(part)
		}
		parties = append(parties, p)
	}
	if t.unheard = elsewhere; elsewhere != 1 {
		agent = twophase.Party{}
	}
	return parties, agent, nil
}

// link returns the connection to a server that has a share, nil if there is none.
func (t *task) link(server placement.Server) *link {
	for _, l := range t.links {
		if l.peer.server == server {
			return l
		}
	}
	return nil
}

// drop closes a connection that broke.
func (t *task) drop(l *link) {
	t.forget(l)
	l.drop()
}

// close closes a connection on which an answer is outstanding.
func (t *task) close(l *link) {
	t.forget(l)
	l.conn.Close()
}

func (t *task) forget(l *link) {
	t.links = slices.DeleteFunc(t.links, func(have *link) bool { return have == l })
}

func (t *task) connect(ctx context.Context, server placement.Server) (l *link, err error) {
	p := t.driver.peers[server]
	if l, err = p.idle(); l == nil && err == nil {
		short, cancel := context.WithTimeout(ctx, peerTimeout)
		defer cancel()
		if l, err = p.dial(short); err != nil && !ended(ctx).ok() {
			p.dialAhead()
		}
	}
	if err == nil {
		t.links = append(t.links, l)
	}
	return l, err
}

// release returns the connections to their peers for reuse.
func (t *task) release() {
	for _, l := range t.links {
		l.release()
	}
	clear(t.links)
	t.links = t.links[:0]
}
