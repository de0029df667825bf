package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"drtmx/internal/cli"
)

// print writes the status for people.
func (st *clusterStatus) print(w io.Writer) {
	fmt.Fprintf(w, "cluster      %s: %d data servers, %d partitions", st.Cluster, len(st.Servers), len(st.Partitions))
	if st.Workload != "" {
		fmt.Fprintf(w, ", workload %s, started by process %d", st.Workload, st.Supervisor)
	}
	fmt.Fprintf(w, "; rates over %v\n\n", time.Duration(st.IntervalS*float64(time.Second)))
	st.printHosts(w)
	st.printServers(w)
	st.printCopies(w)
	st.printPartitions(w)
	st.printModels(w)
}

func (st *clusterStatus) printServers(w io.Writer) {
	rows := [][]string{{"server", "state", "fabrics", "pid", "up", "partitions", "resident", "CPUs", "commits/s", "conflicts/s", "RPCs/s", "reads/s", "in doubt"}}
	for i := range st.Servers {
		s := &st.Servers[i]
		name := strconv.Itoa(s.Server)
		if s.State == stateNoAnswer {
			rows = append(rows, []string{name, s.State, "", "", "", "", "", "", "", "", "", "", ""})
			continue
		}
		fabrics := s.Fabrics
		if s.Route != "" && s.Route != s.Fabrics {
			fabrics += ", here " + s.Route
		}
		rows = append(rows, []string{
			name, s.State, fabrics, strconv.Itoa(s.PID), time.Duration(s.UptimeS * float64(time.Second)).Round(time.Second).String(),
			intsText(s.Partitions), cli.BytesText(s.ResidentBytes), cli.Number(s.CPUs), cli.Number(s.Commits), cli.Number(s.Conflicts), cli.Number(s.RPCs), cli.Number(s.Reads),
			strconv.Itoa(s.Prepared),
		})
	}
	cli.Table(w, rows)
	for i := range st.Servers {
		fmt.Fprintf(w, "server %d at %s\n", st.Servers[i].Server, st.Servers[i].Address)
	}
	fmt.Fprintln(w)
}

func (st *clusterStatus) printPartitions(w io.Writer) {
	if len(st.Partitions) == 0 {
		return
	}
	rows := [][]string{{"partition", "server", "state", "index rows", "memory", "of", "commits/s", "conflicts/s", "in doubt"}}
	for i := range st.Partitions {
		p := &st.Partitions[i]
		rows = append(rows, []string{
			strconv.Itoa(p.Partition), strconv.Itoa(p.Server), p.State, count(p.Rows), cli.BytesText(p.UsedBytes), cli.BytesText(p.LimitBytes),
			cli.Number(p.Commits), cli.Number(p.Conflicts), strconv.Itoa(p.Prepared),
		})
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
}

func (st *clusterStatus) printModels(w io.Writer) {
	if len(st.Models) == 0 {
		return
	}
	rows := [][]string{{"ordered index", "rows", "leaves", "sub-models", "models", "translation", "mean error", "max", "queue", "retrains/s", "fallbacks", "fallbacks/s"}}
	for i := range st.Models {
		m := &st.Models[i]
		rows = append(rows, []string{
			m.Index, count(m.Rows), count(m.Leaves), count(m.Submodels), cli.BytesText(m.ModelBytes), cli.BytesText(m.TTBytes),
			fmt.Sprintf("%.3f", m.MeanError), count(m.MaxError), count(m.Queue), cli.Number(m.Retrains), count(m.Fallbacks), cli.Number(m.FallbackRate),
		})
	}
	cli.Table(w, rows)
}

// intsText lists numbers, and runs of them as a range.
func intsText[T ~int](all []T) string {
	var parts []string
	for i := 0; i < len(all); {
		k := i
		for k+1 < len(all) && all[k+1] == all[k]+1 {
			k++
		}
		switch {
		case k > i+1:
			parts = append(parts, fmt.Sprintf("%d-%d", all[i], all[k]))
		default:
			for _, v := range all[i : k+1] {
				parts = append(parts, strconv.Itoa(int(v)))
			}
		}
		i = k + 1
	}
	return strings.Join(parts, ",")
}
