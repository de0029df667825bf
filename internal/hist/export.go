package hist

import (
	"io"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// percentileTicks is the number of lines for each halving of the distance to
// 100 %, HdrHistogram's own default.
const percentileTicks = 5

// WritePercentiles writes the distribution in HdrHistogram's format of
// percentiles (.hgrm), in microseconds.
func (h *Histogram) WritePercentiles(w io.Writer) error {
	_, err := h.counts.PercentilesPrint(w, percentileTicks, float64(time.Microsecond))
	return err
}

// Log writes the histograms of intervals in HdrHistogram's log format, version
// 1.3: values are nanoseconds, and the maxima beside them milliseconds.
type Log struct{ w *hdr.HistogramLogWriter }

// NewLog writes the head of a log. Its times are since base, in whole seconds.
func NewLog(w io.Writer, base time.Time) (*Log, error) {
	l := &Log{hdr.NewHistogramLogWriter(w)}
	seconds := base.Unix() * 1000
	l.w.SetBaseTime(seconds)
	for _, err := range []error{
		l.w.OutputLogFormatVersion(), l.w.OutputBaseTime(seconds), l.w.OutputStartTime(base.UnixMilli()), l.w.OutputLegend(),
	} {
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Write writes what was recorded from one time to another. The tag says of
// what, without commas and spaces.
func (l *Log) Write(tag string, from, to time.Time, h *Histogram) error {
	h.counts.SetTag(tag)
	h.counts.SetStartTimeMs(from.UnixMilli())
	h.counts.SetEndTimeMs(to.UnixMilli())
	return l.w.OutputIntervalHistogram(h.counts)
}
