// Package plot draws charts as SVG, for HTML pages without scripts and without
// anything from elsewhere. A chart is an HTML figure: a caption, a legend and
// the drawing, whose marks have their values as tooltips. Colours work on light
// and dark pages; text has the page's colour.
//
// Values that are not finite, or not above 0 on a logarithmic axis, are left
// out.
package plot
