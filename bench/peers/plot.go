package main

import (
	"fmt"
	"image/color"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	plotWidth  = 8 * vg.Inch
	plotHeight = 4.5 * vg.Inch
)

// colours can be told apart with any kind of sight.
var colours = map[string]color.Color{
	"relay":        color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	"debezium-500": color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	"debezium-10":  color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	"debezium-1":   color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	"naive":        color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
	"poller":       color.RGBA{R: 0x66, G: 0x66, B: 0x66, A: 0xff},
}

// plotLatency draws p99 as full lines and p50 as dashed ones, over the rate that
// the writers reached. Both axes are logarithmic.
func plotLatency(path string, cfg config, results []result) error {
	p := newPlot("Latency from commit to consumer (full: p99, dashed: p50)")
	p.X.Label.Text, p.Y.Label.Text = "events a second", "milliseconds"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks(cfg.Rates), ticks([]int{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000})
	// Room for the legend, to the right of the lines.
	p.Legend.Top = true
	p.X.Max = 6 * float64(slices.Max(cfg.Rates))
	p.Add(plotter.NewGrid())
	for _, r := range peersOf(results) {
		if err := addLatency(p, r); err != nil {
			return err
		}
	}
	return p.Save(plotWidth, plotHeight, path)
}

func addLatency(p *plot.Plot, r result) error {
	p50, p99 := make(plotter.XYs, len(r.Rates)), make(plotter.XYs, len(r.Rates))
	for i, at := range r.Rates {
		// A logarithm needs more than nothing.
		p50[i] = plotter.XY{X: at.Reached, Y: max(0.01, milliseconds(at.Commit.P50))}
		p99[i] = plotter.XY{X: at.Reached, Y: max(0.01, milliseconds(at.Commit.P99))}
	}
	full, points, err := plotter.NewLinePoints(p99)
	if err != nil {
		return err
	}
	dashed, err := plotter.NewLine(p50)
	if err != nil {
		return err
	}
	full.Color, points.Color, dashed.Color = colours[r.Name], colours[r.Name], colours[r.Name]
	full.Width = vg.Points(1.5)
	points.Shape = draw.CircleGlyph{}
	dashed.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(full, points, dashed)
	p.Legend.Add(r.Title, full, points)
	return nil
}

// plotDrain draws how fast a backlog comes out.
func plotDrain(path string, results []result) error {
	p := newPlot("Backlog, events a second")
	peers := peersOf(results)
	var names []string
	for i, r := range peers {
		// The first contender stands at the top.
		bar, err := plotter.NewBarChart(plotter.Values{r.Drain.rate()}, vg.Points(20))
		if err != nil {
			return err
		}
		bar.Horizontal = true
		bar.XMin = float64(len(peers) - 1 - i)
		bar.Color = colours[r.Name]
		bar.LineStyle.Width = 0
		p.Add(bar)
		names = append([]string{fmt.Sprintf("%s: %.0f", r.Title, r.Drain.rate())}, names...)
	}
	p.NominalY(names...)
	p.X.Min = 0
	return p.Save(plotWidth, plotHeight*2/3, path)
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = vg.Points(8)
	p.BackgroundColor = color.White
	return p
}

func ticks(values []int) plot.ConstantTicks {
	marks := make(plot.ConstantTicks, len(values))
	for i, value := range values {
		marks[i] = plot.Tick{Value: float64(value), Label: strconv.Itoa(value)}
	}
	return marks
}
