package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/txn/stats"
)

// hostStatus is the process of a host.
type hostStatus struct {
	Host    int    `json:"host"`
	State   string `json:"state"` // see cluster.HostRuns and the others
	PID     int    `json:"pid,omitempty"`
	Servers []int  `json:"servers"`           // that run there, by the store of members
	Drained bool   `json:"drained,omitempty"` // no data server and no copy is to be there
	Zone    string `json:"zone,omitempty"`    // what may fail together with it
}

// memberStatus is what the store of members knows of a data server.
type memberStatus struct {
	Host       int    `json:"host"`            // where it is
	To         *int   `json:"to,omitempty"`    // where it is to be, if that is another one
	Waits      string `json:"waits,omitempty"` // why it is not there yet
	Instance   string `json:"instance"`
	Registered bool   `json:"registered"` // it holds a lease
	// InSync are the hosts that have all of its log that was acknowledged, its own
	// included; none if it never had copies.
	InSync []int `json:"in_sync,omitempty"`
}

// addMembers adds what the store of members knows.
func (st *clusterStatus) addMembers(ctx context.Context, c *cluster.Cluster) error {
	now, err := c.Members(ctx)
	if err != nil || now == nil || now.Map == nil {
		return err
	}
	places, waits, drained := cluster.Placement(now)
	i := c.Info()
	for host := range now.Map.Size {
		if i == nil || host >= len(i.Servers) || i.Servers[host].State == "" {
			break
		}
		st.Hosts = append(st.Hosts, hostStatus{
			Host: host, State: i.Servers[host].State, PID: i.Servers[host].PID, Servers: []int{}, Drained: slices.Contains(drained, host),
			Zone: cluster.ZoneOf(now, host),
		})
	}
	if len(st.Hosts) == 0 && (len(drained) > 0 || slices.ContainsFunc(now.Map.Servers, func(s member.Server) bool { return s.Zone != "" })) { // hosts that were started one by one
		for host, state := range cluster.HostStates(now) {
			st.Hosts = append(st.Hosts, hostStatus{Host: host, State: state, Servers: []int{}, Drained: slices.Contains(drained, host), Zone: cluster.ZoneOf(now, host)})
		}
	}
	for k := range st.Servers {
		s, ok := now.Map.Server(placement.Server(st.Servers[k].Server))
		if !ok {
			continue
		}
		r, alive := now.Registered(s.Index)
		alive = alive && r.Instance == s.Instance
		m := &memberStatus{Host: s.Host, Instance: s.Instance.String(), Registered: alive}
		for k := replica.Member(0); k < replica.MaxMembers; k++ {
			if now.Map.Set(s.Index).Members.Has(k) {
				m.InSync = append(m.InSync, replica.Host(k, s.Index, s.Host, now.Map.Size))
			}
		}
		if at := slices.IndexFunc(places, func(w cluster.Where) bool { return w.Server == s.Index }); places[at].To != s.Host {
			m.To, m.Waits = &places[at].To, waits[at]
		}
		slices.Sort(m.InSync)
		if st.Servers[k].Members = m; alive && m.Host < len(st.Hosts) {
			st.Hosts[m.Host].Servers = append(st.Hosts[m.Host].Servers, int(s.Index))
		}
	}
	return nil
}

func (st *clusterStatus) printHosts(w io.Writer) {
	if len(st.Hosts) == 0 {
		return
	}
	rows := [][]string{{"host", "state", "pid", "data servers"}}
	for i := range st.Hosts {
		h := &st.Hosts[i]
		pid := ""
		if h.PID != 0 {
			pid = strconv.Itoa(h.PID)
		}
		state := h.State
		if h.Drained {
			state += ", drained"
		}
		if h.Zone != "" {
			state += ", zone " + h.Zone
		}
		rows = append(rows, []string{strconv.Itoa(h.Host), state, pid, intsText(h.Servers)})
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
}

// printCopies writes where data servers are and how their copies stand, if they have
// copies or members.
func (st *clusterStatus) printCopies(w io.Writer) {
	rows := [][]string{{"server", "host", "instance", "epoch", "lease", "in sync at", "behind at", "lag"}}
	for i := range st.Servers {
		s := &st.Servers[i]
		if s.Members == nil && len(s.Copies) == 0 {
			continue
		}
		row := []string{strconv.Itoa(s.Server), strconv.Itoa(s.Server), "", strconv.FormatUint(uint64(s.Epoch), 10), ""}
		if m := s.Members; m != nil {
			if s.Epoch == 0 { // it does not answer
				row[3] = ""
			}
			row[1], row[2], row[4] = strconv.Itoa(m.Host), m.Instance, "none"
			if m.Registered {
				row[4] = "held"
			}
			if s.LeaseLeftS != nil {
				row[4] = strconv.FormatFloat(*s.LeaseLeftS, 'f', 1, 64) + " s"
			}
		}
		in, out, lag := copiesText(s.Copies)
		if s.Members != nil {
			in = intsText(s.Members.InSync)
		}
		rows = append(rows, append(row, in, out, lag))
	}
	if len(rows) > 1 {
		cli.Table(w, rows)
		fmt.Fprintln(w)
	}
	for i := range st.Servers {
		if m := st.Servers[i].Members; m != nil && m.To != nil {
			fmt.Fprintf(w, "data server %d is to be at host %d: %s\n\n", st.Servers[i].Server, *m.To, m.Waits)
		}
	}
}

// copiesText says which copies are in sync, which are not, and what the last of those
// in sync lacks.
func copiesText(all []stats.Copy) (in, out, lag string) {
	var behind uint64
	var insync, others []int
	for _, c := range all {
		if c.InSync {
			insync, behind = append(insync, c.Keeper), max(behind, c.LagBytes)
		} else {
			others = append(others, c.Keeper)
		}
	}
	if len(insync) > 0 {
		lag = cli.BytesText(behind)
	}
	return intsText(insync), intsText(others), lag
}
